"""Effective weights: proportional, between floors and ceilings."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.policy.fairshare import Entitlement, Tier, effective_weights, entitlement_of, free_slots
from app.policy.fairshare.weights import FLOORS_MOST

entitlements = st.builds(
    Entitlement,
    weight=st.floats(0.1, 1000),
    floor=st.sampled_from([0.0, 0.0, 0.01, 0.05, 0.3]),
    ceiling=st.sampled_from([1.0, 1.0, 0.5, 0.3]),
)
waiting = st.dictionaries(
    st.integers(), st.tuples(entitlements, st.integers(1, 50)), min_size=1, max_size=8
)


def shares(claims: dict[int, tuple[Entitlement, int]]) -> dict[int, float]:
    weights = effective_weights(claims)
    total = sum(weights[key] * n for key, (_, n) in claims.items())
    return {key: weight / total for key, weight in weights.items()}


@settings(max_examples=60)
@given(waiting)
def test_every_share_is_between_its_floor_and_its_ceiling(claims: dict) -> None:
    floors = sum(e.floor * n for e, n in claims.values())
    scale = min(1.0, FLOORS_MOST / floors) if floors else 1.0
    loose = sum(e.ceiling * n for e, n in claims.values()) <= 1.0
    for key, share in shares(claims).items():
        assert share >= claims[key][0].floor * scale * (1 - 1e-9)
        assert loose or share <= claims[key][0].ceiling * (1 + 1e-9)


@settings(max_examples=60)
@given(waiting)
def test_whoever_no_bound_touches_keeps_its_weight(claims: dict) -> None:
    weights = effective_weights(claims)
    for key, (e, _) in claims.items():
        if weights[key] > e.weight * (1 + 1e-9):
            assert e.floor > 0 or sum(e.ceiling * n for e, n in claims.values()) <= 1
        if not e.floor and e.ceiling == 1.0:
            assert weights[key] == pytest.approx(e.weight)


@settings(max_examples=60)
@given(waiting)
def test_a_larger_weight_never_means_a_smaller_share(claims: dict) -> None:
    weights = effective_weights(claims)
    for one, (a, _) in claims.items():
        for other, (b, _) in claims.items():
            if a.weight <= b.weight and a.floor <= b.floor and a.ceiling <= b.ceiling:
                assert weights[one] <= weights[other] * (1 + 1e-9)


@settings(max_examples=60)
@given(waiting)
def test_nobody_is_left_with_nothing(claims: dict) -> None:
    assert all(weight > 0 for weight in effective_weights(claims).values())


def test_the_tiers_against_each_other() -> None:
    free, standard, pro, enterprise = (entitlement_of(tier) for tier in Tier)
    claims = {1: (free, 1), 2: (standard, 1), 3: (pro, 1), 4: (enterprise, 1)}
    assert effective_weights(claims) == {1: 1.0, 2: 10.0, 3: 100.0, 4: 1000.0}
    assert shares({1: (free, 1), 2: (standard, 1)})[1] == pytest.approx(0.05)
    assert shares({1: (free, 1)})[1] == 1.0
    assert shares({3: (pro, 1), 4: (enterprise, 40)})[3] == pytest.approx(0.01)


def test_a_hundred_floors_leave_something_to_those_without_one() -> None:
    claims = {2: (entitlement_of(Tier.STANDARD), 10), 3: (entitlement_of(Tier.PRO), 200)}
    claims[4] = (entitlement_of(Tier.ENTERPRISE), 1000)
    got = shares(claims)
    assert got[3] == pytest.approx(FLOORS_MOST / 200)
    assert got[2] == pytest.approx((1 - FLOORS_MOST) * 10 / 1_000_100)


def test_a_weight_of_its_own_replaces_the_tiers_but_not_its_bounds() -> None:
    assert entitlement_of(Tier.PRO, 7.0) == Entitlement(7.0, floor=0.01)
    assert entitlement_of(Tier.FREE, 7.0) == entitlement_of(Tier.FREE)


@pytest.mark.parametrize(("slots", "most"), [(0, 0), (1, 1), (10, 1), (39, 1), (40, 2), (200, 10)])
def test_free_accounts_have_a_twentieth_of_the_slots_and_at_least_one(
    slots: int, most: int
) -> None:
    assert free_slots(slots) == most
