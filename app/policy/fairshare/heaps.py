"""Heaps of tenants that wait in the same lanes, lowest pass first.

While a heap's lanes are held, it costs nothing, however many wait in it. When it opens and virtual
time has advanced without it, all its passes move on together until the lowest has caught up: nobody
gains credit behind a held lane, and distances inside are kept. Lifting each tenant to the virtual
time was rejected: a lane that a quota opens for a few jobs at a time would forget the weights.

An entry is valid while its version is its entity's; outdated ones are dropped when they come up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from math import fsum, inf

from app.policy.fairshare.tiers import Entitlement

#: Outdated entries that a heap keeps besides as many valid ones.
SLACK = 64
#: An estimate counts as much as so many measured jobs.
TRUST = 2.0
#: Weight of one more job in the mean of the estimates.
SMOOTHING = 0.2
#: Jobs after which measurements begin to fade.
MEMORY = 40.0
#: Jobs that lanes which were empty are thought to hold at least.
LEAST_HELD = 4


class WeightClass:
    """All entities with one entitlement: their effective weight is the same."""

    __slots__ = ("bounded", "changed", "entitlement", "weight")

    def __init__(self, entitlement: Entitlement) -> None:
        self.entitlement = entitlement
        self.weight = entitlement.weight
        #: Its weight depends on who else waits.
        self.bounded = entitlement.floor > 0 or entitlement.ceiling < 1
        #: Number of the last change of the weight.
        self.changed = 0


@dataclass(slots=True, eq=False)
class Entity:
    """What is scheduled by its own pass: a tenant, or the group of all free accounts.

    The cost of its jobs is estimated by type and corrected by what its own jobs took: two tenants
    may share a type and differ a thousandfold in what they do with it.
    """

    id: int
    weight_class: WeightClass
    #: In virtual time; inside a heap without the heap's offset.
    served: float
    #: Seconds that its jobs were estimated to take when they were dispatched …
    estimated: float
    seen: bool = False
    #: … and how many ended recently, after how many seconds together.
    ended: float = 0.0
    ended_seconds: float = 0.0
    cap: int | None = None
    pending: float = 0.0
    in_flight: int = 0
    #: Jobs in flight at the last reconciliation, and dispatched since.
    dispatched: int = 0
    #: Picks of the allocation that is being made.
    granted: int = 0
    #: Jobs that its lanes are thought to hold at most, by what they gave before.
    held: float = inf
    lanes: frozenset[str] = frozenset()
    heap: LaneHeap | None = None
    version: int = 0
    dirty: bool = False

    def charge(self, seconds: Sequence[float]) -> float:
        """Slot-seconds to charge for dispatched jobs that were estimated at ``seconds``."""
        gain = 1.0 - (1.0 - SMOOTHING) ** len(seconds) if self.seen else 1.0
        self.seen = True
        self.estimated += (fsum(seconds) / len(seconds) - self.estimated) * gain
        self.dispatched += len(seconds)
        return fsum(seconds) * self.scale

    def note_given(self, jobs: int) -> None:
        """Its lanes gave so many jobs, and are empty now if it waits in none."""
        if not self.lanes:
            self.held = max(LEAST_HELD, 2 * jobs)
        elif jobs >= self.held:
            self.held *= 2

    def refund(self, seconds: Sequence[float]) -> float:
        """Slot-seconds that were charged for jobs that could not be published."""
        self.dispatched -= len(seconds)
        return fsum(seconds) * self.scale

    def correct(self, *, used: float, pending: float, in_flight: int) -> float:
        """Slot-seconds that the jobs in flight will take, estimated at ``pending`` by type."""
        ended = self.dispatched - in_flight
        self.dispatched = in_flight
        if ended > 0:
            fade = min(1.0, MEMORY / (self.ended + ended))
            self.ended = (self.ended + ended) * fade
            self.ended_seconds = (self.ended_seconds + used) * fade
        if not self.ended:
            return pending
        return max(in_flight * self.expected, pending * min(1.0, self.scale))

    @property
    def scale(self) -> float:
        """How much longer its jobs take than estimated, as a factor."""
        return self.expected / self.estimated if self.estimated > 0 else 1.0

    @property
    def expected(self) -> float:
        """Seconds that its next job will take: what its jobs took, and some of the estimate."""
        return (self.ended_seconds + TRUST * self.estimated) / (self.ended + TRUST)

    @property
    def pass_(self) -> float:
        """Served and expected; inside a heap without the heap's offset."""
        return self.served + self.pending / self.weight_class.weight


#: Pass, id, version, entity.
Entry = tuple[float, int, int, Entity]


@dataclass(slots=True, eq=False)
class LaneHeap:
    """Entities that wait in exactly these lanes."""

    lanes: frozenset[str]
    entries: list[Entry]
    #: How many of each class wait here.
    classes: dict[WeightClass, int]
    members: int = 0
    #: How far its passes were moved on.
    offset: float = 0.0
    closed: bool = False
    #: Number of the change of weights up to which its entries are current.
    built: int = 0

    def offset_at(self, virtual_time: float) -> float:
        """What has to be added to its passes at this virtual time."""
        if not self.closed or not self._drop_outdated():
            return self.offset
        return max(self.offset, virtual_time - self.entries[0][0])

    def open(self, virtual_time: float) -> None:
        self.offset = self.offset_at(virtual_time)
        self.closed = False

    def join(self, entity: Entity) -> None:
        entity.heap = self
        self.members += 1
        self.classes[entity.weight_class] = self.classes.get(entity.weight_class, 0) + 1

    def leave(self, entity: Entity) -> None:
        entity.heap = None
        self.members -= 1
        self.classes[entity.weight_class] -= 1
        if not self.classes[entity.weight_class]:
            del self.classes[entity.weight_class]

    def push(self, entity: Entity) -> None:
        heappush(self.entries, (entity.pass_, entity.id, entity.version, entity))
        if len(self.entries) > 2 * self.members + SLACK:
            self.rebuild()

    def pop(self) -> Entity | None:
        """Remove the one with the lowest pass."""
        return heappop(self.entries)[3] if self._drop_outdated() else None

    def _drop_outdated(self) -> bool:
        """Whether a valid entry is left; if so, it is on top."""
        entries = self.entries
        while entries:
            _, _, version, entity = entries[0]
            if entity.version == version and entity.heap is self:
                return True
            heappop(entries)
        return False

    def rebuild(self) -> None:
        """Keep only valid entries, with the current weights."""
        self.entries = [
            (entity.pass_, entity.id, version, entity)
            for _, _, version, entity in self.entries
            if entity.version == version and entity.heap is self
        ]
        heapify(self.entries)
