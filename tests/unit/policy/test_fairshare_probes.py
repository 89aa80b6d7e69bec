"""Probes of a half-open circuit are given by the tenants in turn, whatever their share."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.policy.fairshare import FairQueue, TenantClaim, Tier, entitlement_of, fewest_first

MOST = 4
#: Tenant → probes that it gave, free or not, and what its jobs cost.
crowds = st.dictionaries(
    st.integers(1, 6),
    st.tuples(st.integers(0, MOST + 1), st.booleans(), st.floats(0.001, 100.0)),
    min_size=1,
)


def queue_of(tenants: dict[int, tuple[int, bool, float]]) -> FairQueue:
    queue = FairQueue(1.0)
    for tenant_id, (_, free, seconds) in tenants.items():
        tier = Tier.FREE if free else Tier.STANDARD
        queue.set_tenant(tenant_id, TenantClaim(entitlement_of(tier), free=free))
        queue.add_lane(tenant_id, "claude")
        queue.dispatched(tenant_id, [seconds])
    return queue


@given(crowds)
def test_the_next_probe_is_one_of_a_tenant_with_the_fewest(
    tenants: dict[int, tuple[int, bool, float]],
) -> None:
    queue = queue_of(tenants)
    probes = {one: count for one, (count, _, _) in tenants.items() if count}
    with fewest_first(queue, {"claude": probes}, MOST):
        grants = queue.allocate(50, slots=100, held={"claude": 1})
    fewest = min(count for count, _, _ in tenants.values())
    assert [tenants[grant.tenant_id][0] for grant in grants] == [fewest] * (fewest < MOST)
    assert queue.lanes == len(tenants), "all of them wait as before"
    assert all(queue.waits_in(tenant_id, "claude") for tenant_id in tenants)


@given(crowds)
def test_other_lanes_are_as_open_as_before(tenants: dict[int, tuple[int, bool, float]]) -> None:
    queue = queue_of(tenants)
    for tenant_id in tenants:
        queue.add_lane(tenant_id, "")
    with fewest_first(queue, {"claude": dict.fromkeys(tenants, MOST)}, MOST):
        grants = queue.allocate(50, slots=100, held={"claude": 1})
    assert sum(grant.jobs for grant in grants) == 50
    assert all(set(grant.lanes) == {""} for grant in grants)


@given(st.lists(st.floats(0.001, 100.0), min_size=1, max_size=5), st.integers(1, 30))
def test_tenants_give_probes_in_turn_until_each_gave_the_most(
    costs: list[float], turns: int
) -> None:
    queue = queue_of({number: (0, False, seconds) for number, seconds in enumerate(costs, 1)})
    probes: Counter[int] = Counter()
    for _ in range(turns):
        with fewest_first(queue, {"claude": probes}, MOST):
            grants = queue.allocate(50, slots=100, held={"claude": 1})
        for grant in grants:
            queue.dispatched(grant.tenant_id, [costs[grant.tenant_id - 1]])
            probes[grant.tenant_id] += grant.jobs
        assert max(probes.values()) - min(probes[number + 1] for number in range(len(costs))) <= 1
    assert sum(probes.values()) == min(turns, MOST * len(costs))


def test_free_accounts_that_may_have_no_more_in_flight_keep_nobody_waiting() -> None:
    queue = queue_of({1: (1, False, 1.0), 2: (0, True, 1.0)})
    queue.allocate(0, slots=100, most_free=1)
    with fewest_first(queue, {"claude": {1: 1}}, MOST):
        grants = queue.allocate(50, slots=100, held={"claude": 1}, most_free=1)
    assert [grant.tenant_id for grant in grants] == [1]
    with fewest_first(queue, {"claude": {1: 1}}, MOST, free=True):
        grants = queue.allocate_slice(50, None, {"claude": 1})
    assert [grant.tenant_id for grant in grants] == [2], "they have workers of their own"
