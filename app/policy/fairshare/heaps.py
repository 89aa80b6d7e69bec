"""Tenants that wait in the same lanes, lowest pass first.

A heap that is held as a whole costs nothing, however many wait in it. When it opens again
and virtual time has gone on without it, all its passes are moved on together, until the
lowest is there too. So nobody gains credit behind a held lane, and inside of it everybody
keeps the distance to the others. Lifting each one to the virtual time was rejected: a lane
that a quota opens for a few jobs at a time would forget the weights.

An entry is only true while its version is its entity's: an outdated one is dropped when it
comes up.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush

from app.policy.fairshare.tiers import Entitlement

#: Outdated entries that a heap keeps beside as many true ones.
SLACK = 64
#: An estimate counts as much as so many measured jobs.
TRUST = 2.0


class Kind:
    """All entities of one entitlement: their effective weight is the same."""

    __slots__ = ("bounded", "changed", "entitlement", "weight")

    def __init__(self, entitlement: Entitlement) -> None:
        self.entitlement = entitlement
        self.weight = entitlement.weight
        #: Its weight depends on who else waits.
        self.bounded = entitlement.floor > 0 or entitlement.ceiling < 1
        #: Number of the last change of the weight.
        self.changed = 0


class Entity:
    """One that is served by its own pass: a tenant, or the group of all free accounts."""

    __slots__ = (
        "cap", "dirty", "ended", "ended_seconds", "estimated", "flown", "granted", "heap", "id",
        "in_flight", "kind", "lanes", "pending", "seen", "served", "version",
    )  # fmt: skip

    def __init__(self, number: int, kind: Kind, served: float, estimated: float) -> None:
        self.id = number
        self.kind = kind
        self.cap: int | None = None
        #: In virtual time; inside a heap without the heap's shift.
        self.served = served
        self.pending = 0.0
        self.in_flight = 0
        #: Seconds that its jobs were estimated to take when they were dispatched …
        self.estimated = estimated
        self.seen = False
        #: … and how many of late ended after how many seconds together.
        self.ended = 0.0
        self.ended_seconds = 0.0
        #: Jobs in flight at the last reconciliation, and dispatched since.
        self.flown = 0
        #: Picks of the allocation that is being made.
        self.granted = 0
        self.lanes: frozenset[str] = frozenset()
        self.heap: LaneHeap | None = None
        self.version = 0
        self.dirty = False

    @property
    def expected(self) -> float:
        """Seconds that its next job will take: what its jobs took, and some of the estimate."""
        return (self.ended_seconds + TRUST * self.estimated) / (self.ended + TRUST)

    @property
    def pass_(self) -> float:
        """Served and expected; inside a heap without the heap's shift."""
        return self.served + self.pending / self.kind.weight


Entry = tuple[float, int, int, Entity]


@dataclass(slots=True, eq=False)
class LaneHeap:
    """Entities that wait in exactly these lanes."""

    lanes: frozenset[str]
    entries: list[Entry]
    #: How many of each kind wait here.
    kinds: dict[Kind, int]
    members: int = 0
    #: How far its passes were moved on.
    offset: float = 0.0
    closed: bool = False
    #: Number of the change of weights that its entries know.
    built: int = 0

    def shift(self, now: float) -> float:
        """What has to be added to its passes at virtual time ``now``."""
        if not self.closed or not self._drop_outdated():
            return self.offset
        return max(self.offset, now - self.entries[0][0])

    def open(self, now: float) -> None:
        self.offset = self.shift(now)
        self.closed = False

    def join(self, entity: Entity) -> None:
        entity.heap = self
        self.members += 1
        self.kinds[entity.kind] = self.kinds.get(entity.kind, 0) + 1

    def leave(self, entity: Entity) -> None:
        entity.heap = None
        self.members -= 1
        self.kinds[entity.kind] -= 1
        if not self.kinds[entity.kind]:
            del self.kinds[entity.kind]

    def push(self, entity: Entity) -> None:
        heappush(self.entries, (entity.pass_, entity.id, entity.version, entity))
        if len(self.entries) > 2 * self.members + SLACK:
            self.rebuild()

    def pop(self) -> Entity | None:
        """Take out the one with the lowest pass."""
        return heappop(self.entries)[3] if self._drop_outdated() else None

    def _drop_outdated(self) -> bool:
        """Whether a true entry is left; if so, it is on top."""
        entries = self.entries
        while entries:
            _, _, version, entity = entries[0]
            if entity.version == version and entity.heap is self:
                return True
            heappop(entries)
        return False

    def rebuild(self) -> None:
        """Only true entries, with the weights of now."""
        self.entries = [
            (entity.pass_, entity.id, version, entity)
            for _, _, version, entity in self.entries
            if entity.version == version and entity.heap is self
        ]
        heapify(self.entries)
