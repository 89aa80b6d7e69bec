"""What lanes give while nobody arbitrates: nobody takes all, and no bound is broken."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from app.policy.round_robin import Lane, ration

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
flying = st.dictionaries(st.integers(1, 6), st.integers(0, 4), max_size=6)
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


@given(st.integers(0, 40), lanes_given.map(same_tenants), flying, st.integers(-2, 5), held_given)
def test_no_bound_is_broken_and_no_room_is_wasted(
    room: int,
    lanes: list[Lane],
    in_flight: dict[int, int],
    free_room: int,
    held: dict[str, int],
) -> None:
    given_out = ration(room, lanes, in_flight, free_room, held)
    known = {(lane.tenant_id, lane.dependency): lane for lane in lanes}
    by_tenant: Counter[int] = Counter()
    by_dependency: Counter[str] = Counter()
    for each in given_out:
        assert each.jobs > 0
        by_tenant[each.tenant_id] += each.jobs
        by_dependency[each.dependency] += each.jobs
    total = sum(by_tenant.values())
    free = sum(each.jobs for each in given_out if known[each.tenant_id, each.dependency].free)

    def tenant_full(lane: Lane) -> bool:
        mine = in_flight.get(lane.tenant_id, 0) + by_tenant[lane.tenant_id]
        return lane.cap is not None and mine >= lane.cap

    def lane_full(lane: Lane) -> bool:
        behind = held.get(lane.dependency)
        return (
            tenant_full(lane)
            or (behind is not None and by_dependency[lane.dependency] >= behind)
            or (lane.free and free >= free_room)
        )

    assert total <= room
    assert free <= max(0, free_room)
    assert all(by_dependency[name] <= most for name, most in held.items())
    for each in given_out:
        lane = known[each.tenant_id, each.dependency]
        mine = in_flight.get(each.tenant_id, 0) + by_tenant[each.tenant_id]
        assert lane.cap is None or mine <= lane.cap
    assert total == room or all(lane_full(lane) for lane in lanes)


@given(st.integers(0, 50), st.integers(1, 20))
def test_lanes_without_bounds_get_the_same_give_or_take_one(room: int, tenants: int) -> None:
    lanes = [Lane(tenant_id, "") for tenant_id in range(tenants)]
    jobs = [each.jobs for each in ration(room, lanes, {}, 0, {})]
    jobs += [0] * (tenants - len(jobs))
    assert sum(jobs) == room
    assert max(jobs) - min(jobs) <= 1
    assert jobs == sorted(jobs, reverse=True), "those in front come first"
