"""An allocation's properties: who is picked, and what can never happen."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from heapq import heappop

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.policy.fairshare import Entitlement, FairQueue, Grant, TenantClaim, Tier, entitlement_of
from app.policy.fairshare import heaps as heaps_module

SECONDS = 10.0
LANES = ("", "claude", "ocr")


def standing(weight: float = 10.0, cap: int | None = None) -> TenantClaim:
    return TenantClaim(Entitlement(weight), cap=cap)


FREE = TenantClaim(entitlement_of(Tier.FREE), free=True)


@dataclass(frozen=True)
class Waiting:
    number: int
    standing: TenantClaim
    lanes: frozenset[str]
    served: float
    in_flight: int


standings = st.one_of(
    st.builds(standing, st.sampled_from([5.0, 10.0, 30.0]), st.sampled_from([None, None, 1, 3])),
    st.just(FREE),
    st.just(TenantClaim(entitlement_of(Tier.FREE), free=True, cap=2)),
    st.just(TenantClaim(entitlement_of(Tier.PRO))),
)
crowds = st.lists(
    st.builds(
        Waiting,
        number=st.integers(1, 10**6),
        standing=standings,
        lanes=st.frozensets(st.sampled_from(LANES), min_size=1),
        served=st.integers(0, 5).map(float),
        in_flight=st.integers(0, 2),
    ),
    min_size=1,
    max_size=12,
    unique_by=lambda each: each.number,
)
limits = st.dictionaries(st.sampled_from(LANES), st.integers(0, 4), max_size=2)
rooms = st.integers(0, 30)
slices = st.one_of(st.none(), st.integers(0, 5))


def queue_of(crowd: list[Waiting]) -> FairQueue:
    queue = FairQueue(SECONDS)
    for each in crowd:
        queue.set_tenant(each.number, each.standing, served=each.served)
        queue.set_in_flight(each.number, each.in_flight)
        for lane in each.lanes:
            queue.add_lane(each.number, lane)
    return queue


def allocate(
    crowd: list[Waiting], room: int, held: Mapping[str, int], most_free: int | None
) -> list[Grant]:
    return queue_of(crowd).allocate(room, slots=20, held=held, most_free=most_free)


def expected_grants(
    crowd: list[Waiting], room: int, held: Mapping[str, int], most_free: int | None
) -> dict[int, int]:
    """The rule itself, one pick after the other and looking at everybody each time."""
    queue = queue_of(crowd)
    queue.allocate(0, slots=20, held=held, most_free=most_free)
    weight = {each.number: queue.account(each.number).weight for each in crowd}
    rooms, got = dict(held), dict.fromkeys((each.number for each in crowd), 0)
    free = [each for each in crowd if each.standing.free]
    free_in_flight = sum(each.in_flight for each in free)

    def may(each: Waiting) -> bool:
        cap = math.inf if each.standing.cap is None else each.standing.cap
        return each.in_flight + got[each.number] < cap and any(
            rooms.get(lane, 1) > 0 for lane in each.lanes
        )

    def own(each: Waiting) -> tuple[float, int]:
        divisor = 1.0 if each.standing.free else weight[each.number]
        return each.served + got[each.number] * SECONDS / divisor, each.number

    for _ in range(room):
        options = [(*own(each), each) for each in crowd if may(each) and not each.standing.free]
        accounts = [(*own(each), each) for each in free if may(each)]
        in_flight = free_in_flight + sum(got[each.number] for each in free)
        if accounts and (most_free is None or in_flight < most_free):
            passed = sum(got[each.number] for each in free) * SECONDS / weight[free[0].number]
            options.append((passed, math.inf, min(accounts)[2]))
        if not options:
            break
        picked = min(options, key=lambda option: option[:2])[2]
        got[picked.number] += 1
        for lane in picked.lanes:
            if rooms.get(lane, 0) > 0:
                rooms[lane] -= 1
    return {number: jobs for number, jobs in got.items() if jobs}


@settings(max_examples=50)
@given(crowds, rooms, limits, slices)
def test_an_allocation_is_one_pick_of_the_lowest_pass_after_the_other(
    crowd: list[Waiting], room: int, held: dict[str, int], most_free: int | None
) -> None:
    grants = allocate(crowd, room, held, most_free)
    assert {g.tenant_id: g.jobs for g in grants} == expected_grants(crowd, room, held, most_free)


@settings(max_examples=50)
@given(crowds, rooms, limits, slices)
def test_room_is_left_only_if_nobody_may_be_picked_and_no_limit_is_passed(
    crowd: list[Waiting], room: int, held: dict[str, int], most_free: int | None
) -> None:
    grants = {grant.tenant_id: grant for grant in allocate(crowd, room, held, most_free)}
    total = sum(grant.jobs for grant in grants.values())
    spent = {lane: sum(g.lanes.get(lane, 0) for g in grants.values()) for lane in held}
    free = sum(
        each.in_flight + (grants[each.number].jobs if each.number in grants else 0)
        for each in crowd
        if each.standing.free
    )
    granted_free = any(each.number in grants for each in crowd if each.standing.free)
    assert total <= room
    assert all(spent[lane] <= most for lane, most in held.items())
    assert most_free is None or not granted_free or free <= most_free
    for each in crowd:
        grant = grants.get(each.number)
        jobs = grant.jobs if grant else 0
        cap = math.inf if each.standing.cap is None else each.standing.cap
        if grant:
            assert each.in_flight + jobs <= cap
            assert set(grant.lanes) <= each.lanes
            assert jobs <= sum(grant.lanes.values())
        if total < room:
            capped = each.in_flight + jobs >= cap
            closed = all(lane in held and spent[lane] >= held[lane] for lane in each.lanes)
            sliced = each.standing.free and most_free is not None and free >= most_free
            assert capped or closed or sliced


@settings(max_examples=50)
@given(crowds, rooms, limits, slices, st.randoms(use_true_random=False))
def test_the_order_of_arrival_says_nothing(
    crowd: list[Waiting],
    room: int,
    held: dict[str, int],
    most_free: int | None,
    chance: random.Random,
) -> None:
    shuffled = list(crowd)
    chance.shuffle(shuffled)
    assert allocate(crowd, room, held, most_free) == allocate(shuffled, room, held, most_free)


@settings(max_examples=50)
@given(crowds, rooms, limits, slices)
def test_nothing_is_charged_before_it_is_dispatched(
    crowd: list[Waiting], room: int, held: dict[str, int], most_free: int | None
) -> None:
    queue = queue_of(crowd)
    first = queue.allocate(room, slots=20, held=held, most_free=most_free)
    again = queue.allocate(room, slots=20, held=held, most_free=most_free)
    if not {lane for lane, most in held.items() if most}:  # used-up lanes move on with the time
        assert first == again
    assert all(queue.account(each.number).in_flight == each.in_flight for each in crowd)


def test_a_limited_lane_is_used_up_as_if_all_came_from_it() -> None:
    queue = FairQueue(SECONDS)
    queue.set_tenant(1, standing())
    queue.add_lane(1, "")
    queue.add_lane(1, "claude")
    assert queue.allocate(5, slots=9, held={"claude": 3}) == [Grant(1, 5, {"": 5, "claude": 3})]
    assert queue.allocate(2, slots=9, held={"claude": 3}) == [Grant(1, 2, {"": 2, "claude": 2})]
    assert queue.allocate(2, slots=9, held={"claude": 0}) == [Grant(1, 2, {"": 2})]


def test_a_lane_that_is_used_up_leaves_the_room_to_others() -> None:
    queue = FairQueue(SECONDS)
    for number, weight, lane in ((1, 10, "claude"), (2, 10, "claude"), (3, 1, "")):
        queue.set_tenant(number, standing(weight))
        queue.add_lane(number, lane)
    grants = queue.allocate(10, slots=10, held={"claude": 3})
    assert sum(g.jobs for g in grants if g.tenant_id != 3) == 3
    assert sum(g.jobs for g in grants) == 10


def test_a_pick_among_ten_thousand_looks_at_as_few_as_among_ten(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    looks = 0

    def counted(entries: list[heaps_module.Entry]) -> heaps_module.Entry:
        nonlocal looks
        looks += 1
        return heappop(entries)

    queue = FairQueue(SECONDS)
    for number in range(1, 20_001):
        queue.set_tenant(number, standing())
        queue.add_lane(number, "" if number <= 10_000 else "claude")
    queue.allocate(0, slots=500, held={"claude": 0})
    monkeypatch.setattr(heaps_module, "heappop", counted)
    assert len(queue.allocate(500, slots=500, held={"claude": 0})) == 500
    assert looks <= 502


def test_tenants_with_few_jobs_do_not_take_the_picks_of_all_others() -> None:
    queue, tenants = FairQueue(1.0), range(1, 21)
    for tenant in tenants:
        queue.set_tenant(tenant, standing(1000.0))
    complete = []
    for _ in range(15):
        left = dict.fromkeys(tenants, 2)
        for tenant in tenants:
            # Each is so far behind the next that it would get a hundred picks before that.
            in_flight = 100 * tenant
            queue.reconcile(tenant, used=0.0, pending=float(in_flight), in_flight=in_flight)
            queue.add_lane(tenant, "")
        for _ in range(3):
            for grant in queue.allocate(100, slots=10_000):
                given = min(grant.jobs, left[grant.tenant_id])
                left[grant.tenant_id] -= given
                if not left[grant.tenant_id]:
                    queue.remove_lane(grant.tenant_id, "")
                queue.dispatched(grant.tenant_id, [1.0] * given)
        complete.append(not any(left.values()))
    assert all(complete[-5:])


def test_a_tenant_alone_gets_all_picks_however_few_jobs_it_had() -> None:
    queue = FairQueue(1.0)
    queue.set_tenant(1, TenantClaim(Entitlement(10.0)))
    queue.add_lane(1, "")
    queue.allocate(10, slots=100)
    queue.remove_lane(1, "")
    queue.dispatched(1, [1.0])
    queue.add_lane(1, "")
    (grant,) = queue.allocate(50, slots=100)
    assert grant.jobs == 50
