"""Run times in bins: how much of the truth is left."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.policy.histogram import HALF_LIFE_SECONDS, Bin, Histogram, decay, gather
from models.tallies import LEAST, MOST, bin_of, parse_run_name, run_name

times = st.one_of(
    st.integers(0, 10 * LEAST), st.integers(0, MOST), st.floats(0, 12).map(lambda e: int(10**e))
)
runs = st.lists(times, min_size=1, max_size=300)


def binned(microseconds: list[int]) -> Histogram:
    """As workers count them."""
    return gather((bin_of(ran), 1, ran / 1e6) for ran in microseconds)


def bins(microseconds: list[int]) -> list[Bin]:
    return [(number, *values) for number, values in binned(microseconds).bins.items()]


@given(times, times)
def test_longer_runs_are_in_higher_bins(one: int, other: int) -> None:
    shorter, longer = sorted((one, other))
    assert bin_of(shorter) <= bin_of(longer)


@given(st.integers(LEAST, MOST))
def test_no_bin_is_wider_than_a_quarter_of_its_lower_end(ran: int) -> None:
    beyond = ran + ran // 4 + 1
    assert bin_of(beyond) > bin_of(ran) or beyond > MOST


def test_whatever_the_clock_says_there_is_a_bin() -> None:
    assert bin_of(-5) == bin_of(0) == bin_of(LEAST) == 0
    assert bin_of(10 * MOST) == bin_of(MOST) < 128


@given(runs, st.sampled_from([0.5, 0.95, 1.0]))
def test_a_quantile_is_within_a_bins_width_of_the_exact_one(ran: list[int], share: float) -> None:
    rank = math.ceil(round(share * len(ran), 6))
    exact = sorted(ran)[rank - 1]
    found = binned(ran).quantile(share)
    assert found is not None
    assert bin_of(round(found * 1e6)) == bin_of(exact)
    width = exact / 4 if bin_of(exact) else LEAST * 5 / 4
    assert abs(found - exact / 1e6) <= width / 1e6 + 1e-6


@given(runs)
def test_the_mean_is_exact(ran: list[int]) -> None:
    assert binned(ran).mean_seconds == pytest.approx(sum(ran) / len(ran) / 1e6)


@given(runs, runs)
def test_the_order_of_merging_makes_no_difference(one: list[int], other: list[int]) -> None:
    both = gather(bins(one) + bins(other))
    assert both == gather(bins(other) + bins(one))
    assert both.runs == len(one) + len(other)
    assert both.quantile(0.95) == pytest.approx(binned(one + other).quantile(0.95))


@given(runs, st.floats(0, 3600))
def test_growing_old_together_changes_nothing(ran: list[int], age: float) -> None:
    old = gather((n, runs * decay(age), took * decay(age)) for n, runs, took in bins(ran))
    assert old.quantile(0.95) == pytest.approx(binned(ran).quantile(0.95))
    assert old.mean_seconds == pytest.approx(binned(ran).mean_seconds)


def test_recent_runs_count_more() -> None:
    assert decay(-1) == decay(0) == 1
    assert decay(HALF_LIFE_SECONDS) == 0.5
    slow_then_fast = gather([(40, 100 * decay(3600), 500.0 * decay(3600)), (9, 900, 9.0)])
    assert slow_then_fast.quantile(0.95) == 0.01, "a tenth of all, but long ago"


def test_of_no_runs_nothing_is_said() -> None:
    assert Histogram().mean_seconds is None
    assert Histogram().quantile(0.95) is None


@given(
    times, st.booleans(), st.sampled_from(["short", "a-pool_2"]), st.sampled_from(["a.b-c", "x"])
)
def test_the_name_of_a_run_says_all_of_it(ran: int, over: bool, pool: str, name: str) -> None:
    assert parse_run_name(run_name(pool, name, ran, over)) == (name, pool, bin_of(ran), over)
