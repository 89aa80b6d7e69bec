"""What a use costs."""

from __future__ import annotations

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.policy.pricing import MILLIONTH, PriceList, Use, cost

counts = st.integers(0, 10**12)
amounts = st.decimals(0, 10**15, places=9)
uses = st.builds(Use, jobs=counts, slot_seconds=amounts, tokens_in=counts, tokens_out=counts)
price_lists = st.builds(
    PriceList,
    per_slot_second=amounts,
    per_job=amounts,
    per_million_tokens_in=amounts,
    per_million_tokens_out=amounts,
)
NOTHING = Use(0, Decimal(0), 0, 0)


def plus(one: Use, other: Use) -> Use:
    return Use(
        one.jobs + other.jobs,
        one.slot_seconds + other.slot_seconds,
        one.tokens_in + other.tokens_in,
        one.tokens_out + other.tokens_out,
    )


def exact(use: Use, prices: PriceList) -> Fraction:
    return (
        use.jobs * Fraction(prices.per_job)
        + Fraction(use.slot_seconds) * Fraction(prices.per_slot_second)
        + Fraction(use.tokens_in, 10**6) * Fraction(prices.per_million_tokens_in)
        + Fraction(use.tokens_out, 10**6) * Fraction(prices.per_million_tokens_out)
    )


def test_an_invoice_by_hand() -> None:
    prices = PriceList(Decimal("0.00002"), Decimal("0.00001"), Decimal(1), Decimal(5))
    use = Use(jobs=1000, slot_seconds=Decimal("1500.5"), tokens_in=2_000_000, tokens_out=150_000)
    assert cost(use, prices) == Decimal("0.01") + Decimal("0.03001") + 2 + Decimal("0.75")


@pytest.mark.parametrize(
    ("seconds", "rounded"),
    [("0.00000049", "0"), ("0.0000005", "0.000001"), ("0.0000015", "0.000002")],
)
def test_half_a_millionth_is_rounded_up(seconds: str, rounded: str) -> None:
    prices = PriceList(per_slot_second=Decimal(1))
    assert cost(Use(0, Decimal(seconds), 0, 0), prices) == Decimal(rounded)


@given(price_lists)
def test_nothing_costs_nothing(prices: PriceList) -> None:
    assert cost(NOTHING, prices) == 0


@given(uses, price_lists)
def test_a_cost_is_exact_but_for_its_last_rounding(use: Use, prices: PriceList) -> None:
    priced = cost(use, prices)
    off = Fraction(priced) - exact(use, prices)
    assert -Fraction(MILLIONTH) / 2 < off <= Fraction(MILLIONTH) / 2
    assert priced.as_tuple().exponent == -6


@given(uses, uses, price_lists)
def test_costs_add_up_within_the_rounding(one: Use, other: Use, prices: PriceList) -> None:
    apart = Fraction(cost(one, prices)) + Fraction(cost(other, prices))
    together = Fraction(cost(plus(one, other), prices))
    assert abs(apart - together) <= Fraction(MILLIONTH)


@given(uses, uses, price_lists)
def test_more_use_never_costs_less(one: Use, other: Use, prices: PriceList) -> None:
    assert cost(plus(one, other), prices) >= cost(one, prices) >= 0


@given(st.floats(0, 1e12))
def test_seconds_that_were_a_float_are_priced_exactly(seconds: float) -> None:
    use = Use(0, Decimal(seconds), 0, 0)
    off = Fraction(cost(use, PriceList())) - Fraction(seconds) * Fraction(
        PriceList().per_slot_second
    )
    assert abs(off) <= Fraction(MILLIONTH) / 2
