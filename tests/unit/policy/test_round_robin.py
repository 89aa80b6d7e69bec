"""Dispatch without a scheduler: no tenant takes all, and no bound is broken."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.policy.round_robin import Lane, round_robin

lanes_given = st.lists(
    st.builds(
        Lane,
        tenant_id=st.integers(1, 6),
        dependency=st.sampled_from(["", "claude", "maps"]),
        free=st.booleans(),
        cap=st.none() | st.integers(1, 5),
    ),
    unique_by=lambda lane: (lane.tenant_id, lane.dependency),
    max_size=12,
)
active = st.dictionaries(st.integers(1, 6), st.integers(0, 4), max_size=6)
held_given = st.dictionaries(st.sampled_from(["claude", "maps"]), st.integers(0, 4))


def same_tenants(lanes: list[Lane]) -> list[Lane]:
    """Free or not, and how many: a matter of the tenant, not of the lane."""
    first: dict[int, Lane] = {}
    return [
        Lane(
            lane.tenant_id,
            lane.dependency,
            first.setdefault(lane.tenant_id, lane).free,
            first[lane.tenant_id].cap,
        )
        for lane in lanes
    ]


@given(st.integers(0, 40), lanes_given.map(same_tenants), active, st.integers(-2, 5), held_given)
def test_no_bound_is_broken_and_no_slot_is_wasted(
    most: int,
    lanes: list[Lane],
    in_flight: dict[int, int],
    most_free: int,
    held: dict[str, int],
) -> None:
    given_out = round_robin(most, lanes, in_flight, most_free, held)
    by_tenant: Counter[int] = Counter()
    by_dependency: Counter[str] = Counter()
    for lane, jobs in given_out.items():
        assert jobs > 0
        by_tenant[lane.tenant_id] += jobs
        by_dependency[lane.dependency] += jobs
    total = sum(by_tenant.values())
    free = sum(jobs for lane, jobs in given_out.items() if lane.free)

    def tenant_full(lane: Lane) -> bool:
        mine = in_flight.get(lane.tenant_id, 0) + by_tenant[lane.tenant_id]
        return lane.cap is not None and mine >= lane.cap

    def lane_full(lane: Lane) -> bool:
        behind = held.get(lane.dependency)
        return (
            tenant_full(lane)
            or (behind is not None and by_dependency[lane.dependency] >= behind)
            or (lane.free and free >= most_free)
        )

    assert total <= most
    assert free <= max(0, most_free)
    assert all(by_dependency[name] <= jobs for name, jobs in held.items())
    for lane in given_out:
        mine = in_flight.get(lane.tenant_id, 0) + by_tenant[lane.tenant_id]
        assert lane.cap is None or mine <= lane.cap
    assert total == most or all(lane_full(lane) for lane in lanes)


@given(st.integers(0, 50), st.integers(1, 20))
def test_lanes_without_bounds_get_the_same_give_or_take_one(most: int, tenants: int) -> None:
    lanes = [Lane(tenant_id, "") for tenant_id in range(tenants)]
    jobs = list(round_robin(most, lanes, {}, 0, {}).values())
    jobs += [0] * (tenants - len(jobs))
    assert sum(jobs) == most
    assert max(jobs) - min(jobs) <= 1
    assert jobs == sorted(jobs, reverse=True), "those in front come first"
