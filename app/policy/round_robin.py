"""Round robin over lanes, for dispatch without a scheduler: one job per lane at a time. Pure.

No fair share: a tenant with jobs in two lanes gets twice as much, and earlier usage does not count.
But no tenant takes all, and caps hold.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Lane:
    """Queued jobs of one tenant that need one dependency."""

    tenant_id: int
    dependency: str
    #: A free account.
    free: bool = False
    #: Jobs the tenant may have in flight in this pool.
    cap: int | None = None


def round_robin(
    most: int,
    lanes: Sequence[Lane],
    in_flight: Mapping[int, int],
    most_free: int,
    held: Mapping[str, int],
) -> dict[Lane, int]:
    """Distribute up to ``most`` jobs over the lanes, in their order; those that get any.

    ``in_flight`` by tenant counts against caps; ``most_free`` is for all free accounts together;
    ``held`` limits dependencies, 0 for those that may give nothing.
    """
    left: dict[tuple[str, object], int] = {("pool", ""): most, ("free", True): most_free}
    left |= {("dependency", name): jobs for name, jobs in held.items()}
    for lane in lanes:
        if lane.cap is not None:
            left["tenant", lane.tenant_id] = lane.cap - in_flight.get(lane.tenant_id, 0)
    given = dict.fromkeys(lanes, 0)
    able = list(lanes)
    while able:
        still = []
        for lane in able:
            keys = [("pool", ""), ("free", lane.free), ("dependency", lane.dependency)]
            limits = left.keys() & [*keys, ("tenant", lane.tenant_id)]
            if min(left[limit] for limit in limits) > 0:
                given[lane] += 1
                for limit in limits:
                    left[limit] -= 1
                still.append(lane)
        able = still
    return {lane: jobs for lane, jobs in given.items() if jobs}
