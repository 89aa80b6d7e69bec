"""Shares of slot-seconds over time, in a pool on paper."""

from __future__ import annotations

import random

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from app.policy.fairshare import Entitlement, TenantClaim, Tier, entitlement_of, free_slots
from tests.support.simulated_pool import Length, Pool, Tenant


def always(seconds: float) -> Length:
    return lambda _: seconds


def mixed(shortest: float, longest: float) -> Length:
    """Short jobs and long ones of the same tenant, as much time in the one as in the other."""

    def length(chance: random.Random) -> float:
        return shortest * (longest / shortest) ** chance.random()

    return length


def paying(number: int, length: Length, weight: float = 10.0, type: str = "job") -> Tenant:
    return Tenant(number, TenantClaim(Entitlement(weight)), length, type)


#: Seconds of jobs, 1 to 1000, all of the same type or each of its own.
lengths = st.sampled_from([0.1, 1.0, 10.0, 100.0])


@settings(
    max_examples=6,
    suppress_health_check=[HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],  # shrinking takes minutes
)
@given(
    st.lists(st.tuples(lengths, st.sampled_from([10.0, 20.0])), min_size=2, max_size=3),
    st.booleans(),
)
def test_shares_follow_weights_whatever_the_jobs_take(
    wishes: list[tuple[float, float]], one_type: bool
) -> None:
    tenants = [
        paying(number, always(seconds), weight, "job" if one_type else f"job {seconds}")
        for number, (seconds, weight) in enumerate(wishes, 1)
    ]
    pool = Pool(4, tenants, turn=0.4)
    pool.run(800.0)  # nobody knows at first what the jobs take: too much is paid back
    before = pool.used()
    pool.run(2300.0)
    used = {number: after - before[number] for number, after in pool.used().items()}
    total = sum(weight for _, weight in wishes)
    for number, (seconds, weight) in enumerate(wishes, 1):
        fair = sum(used.values()) * weight / total
        assert used[number] == pytest.approx(fair, abs=0.05 * fair + seconds)


def test_a_minute_of_contention_is_enough() -> None:
    wishes = {1: (0.01, 10.0), 2: (0.1, 20.0), 3: (1.0, 30.0), 4: (10.0, 40.0)}
    pool = Pool(20, [paying(n, always(s), w, f"type {n}") for n, (s, w) in wishes.items()])
    got = pool.shares(60.0)
    for number, (_, weight) in wishes.items():
        assert got[number] == pytest.approx(weight / 100, rel=0.05)


def test_a_tenant_with_mixed_jobs_gets_its_share_too() -> None:
    pool = Pool(20, [paying(1, mixed(0.02, 20.0)), paying(2, mixed(0.02, 20.0), 30.0)], turn=0.5)
    pool.run(50.0)
    assert pool.shares(1050.0)[1] == pytest.approx(0.25, rel=0.05)


def test_floor_ceiling_and_cap_hold_against_the_strongest() -> None:
    free = [
        Tenant(n, TenantClaim(entitlement_of(Tier.FREE), free=True), always(2.0), "free")
        for n in range(100, 150)
    ]
    pro = Tenant(1, TenantClaim(entitlement_of(Tier.PRO)), always(1.0), "pro")
    capped = Tenant(2, TenantClaim(Entitlement(1000.0), cap=3), always(3.0), "capped")
    strong = [Tenant(n, TenantClaim(Entitlement(20_000.0)), always(1.0), "strong") for n in (3, 4)]
    pool = Pool(100, [*free, pro, capped, *strong], turn=1.0, most_free=free_slots(100))
    pool.run(30.0)
    got = pool.shares(330.0)
    assert got[1] == pytest.approx(0.01, rel=0.1)
    assert sum(got[n.number] for n in free) <= 0.05
    assert pool.most_in_flight[2] == 3


def test_free_accounts_never_get_more_than_their_slice_beside_a_single_tenant() -> None:
    free = [
        Tenant(n, TenantClaim(entitlement_of(Tier.FREE), free=True), always(1.0), "free")
        for n in range(100, 150)
    ]
    pool = Pool(40, [paying(1, always(1.0)), *free], turn=0.5, most_free=free_slots(40))
    pool.run(30.0)
    got = pool.shares(230.0)
    assert 0.02 < sum(got[n.number] for n in free) <= 0.05
    each = [pool.used()[n.number] for n in free]
    assert max(each) - min(each) <= 3.0


def test_a_flood_does_not_hold_up_a_newcomer() -> None:
    flood = paying(1, always(1.0))
    late = Tenant(2, TenantClaim(Entitlement(10.0)), always(1.0), starts=100.0)
    pool = Pool(10, [flood, late])
    pool.run(100.0)
    pool.run(104.0)
    started = pool.tallies[2].first_start
    assert started is not None and started - 100.0 <= 2.2  # what was at the broker runs first
    assert pool.shares(224.0)[2] == pytest.approx(0.5, rel=0.05)


def test_whoever_had_the_pool_alone_shares_it_from_then_on() -> None:
    alone = paying(1, always(1.0))
    late = Tenant(2, TenantClaim(Entitlement(10.0)), always(1.0), starts=1800.0)
    pool = Pool(10, [alone, late], turn=1.0)
    pool.run(1810.0)
    assert pool.shares(1910.0)[1] == pytest.approx(0.5, rel=0.05)
