"""What each lane gives while nobody arbitrates: one after the other, one job at a time. Pure.

No fair share: a tenant with jobs in two lanes gets twice as much, and what anybody was
served before does not count. But nobody takes all, and caps hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lane:
    """Jobs of one tenant behind one dependency."""

    tenant_id: int
    dependency: str
    #: A free account.
    free: bool = False
    #: Jobs the tenant may have in flight in this pool.
    cap: int | None = None


@dataclass(frozen=True, slots=True)
class Ration:
    """At most so many jobs of a lane."""

    tenant_id: int
    dependency: str
    jobs: int


def ration(
    room: int,
    lanes: Sequence[Lane],
    in_flight: Mapping[int, int],
    free_room: int,
    held: Mapping[str, int],
) -> list[Ration]:
    """Share ``room`` out among the lanes, in their order, as long as any may give more.

    ``in_flight`` by tenant counts against caps; ``free_room`` is what all free accounts may
    add together; ``held`` limits dependencies, 0 for those that may give nothing.
    """
    left = {
        lane.tenant_id: lane.cap - in_flight.get(lane.tenant_id, 0)
        for lane in lanes
        if lane.cap is not None
    }
    behind = dict(held)
    given = dict.fromkeys(range(len(lanes)), 0)
    able = list(given)
    while room > 0 and able:
        still = []
        for place in able:
            lane = lanes[place]
            bounds = [
                room,
                left.get(lane.tenant_id, room),
                behind.get(lane.dependency, room),
                free_room if lane.free else room,
            ]
            if min(bounds) <= 0:
                continue
            given[place] += 1
            room -= 1
            if lane.tenant_id in left:
                left[lane.tenant_id] -= 1
            if lane.dependency in behind:
                behind[lane.dependency] -= 1
            if lane.free:
                free_room -= 1
            still.append(place)
        able = still
    return [
        Ration(lanes[place].tenant_id, lanes[place].dependency, jobs)
        for place, jobs in given.items()
        if jobs > 0
    ]
