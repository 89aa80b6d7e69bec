"""A contest: entities that wait under one virtual time. The paying tenants of a pool are in
one, the accounts of its free group among themselves are in another.

Changes are only noted. They take effect together in :meth:`Contest.settle`, each entity by
itself, so the order in which they came says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from app.policy.fairshare.heaps import Entity, Kind, LaneHeap
from app.policy.fairshare.weights import effective_weights

#: Nobody has to wait longer than about this for what it used before.
DEBT_SECONDS = 3600.0


class Contest:
    def __init__(self, virtual_time: float) -> None:
        self.virtual_time = virtual_time
        #: Waiting tenants that only their cap keeps back.
        self.capped: dict[int, Entity] = {}
        #: Effective weight of all that may be picked, as of the last allocation.
        self.total = 0.0
        self._heaps: dict[tuple[frozenset[str], Kind | None], LaneHeap] = {}
        self._dirty: list[Entity] = []
        self._highest = virtual_time
        self._debt = math.inf
        self._counted: dict[Kind, int] = {}
        self._changes = 0

    def touch(self, entity: Entity) -> None:
        """Something about it changed; its entry, if any, is void."""
        if not entity.dirty:
            entity.dirty = True
            entity.version += 1
            self._dirty.append(entity)

    def settle(self) -> None:
        """Put whoever changed where it belongs now."""
        for entity in self._dirty:
            entity.dirty = False
            capped = entity.cap is not None and entity.in_flight >= entity.cap
            if capped or self.capped:
                self._keep_back(entity, capped)
            heap = entity.heap
            if capped or heap is None or heap.lanes is not entity.lanes:
                heap = self._place(entity) if entity.lanes and not capped else None
                self._move(entity, heap)
            self.forgive(entity)
            if heap is not None:
                heap.push(entity)
        self._dirty.clear()

    def forget(self, entity: Entity) -> None:
        """It stands in another contest from now on."""
        self.settle()
        self._keep_back(entity, False)
        self._move(entity, None)
        entity.version += 1

    def rest(self) -> None:
        """Nobody competes: whoever comes next, comes as an equal."""
        self.settle()
        self.virtual_time = max(self.virtual_time, self._highest)

    def served(self, entity: Entity) -> float:
        """What it was served, in virtual time."""
        if entity.heap is None:
            return entity.served
        return entity.served + entity.heap.shift(self.virtual_time)

    def lift(self, entity: Entity) -> None:
        """It joins: what it did not use while it was away is gone."""
        entity.served = max(entity.served, self.virtual_time)

    def forgive(self, entity: Entity) -> None:
        """A debt has an end, however much was used."""
        shift = 0.0 if entity.heap is None else entity.heap.shift(self.virtual_time)
        excess = entity.pass_ + shift - self.virtual_time - self._debt
        if excess > 0:
            entity.served -= excess
        served = entity.served + shift
        if served > self._highest:
            self._highest = served

    def open(self, limits: Mapping[str, int]) -> list[LaneHeap]:
        """The heaps of which at least one lane has room."""
        opened = []
        for place, heap in list(self._heaps.items()):
            if not heap.members:
                del self._heaps[place]
                continue
            if any(limits.get(lane, 1) > 0 for lane in heap.lanes):
                heap.open(self.virtual_time)
                opened.append(heap)
            else:
                heap.closed = True
        return opened

    def waits(self, held: Collection[str]) -> bool:
        return any(heap.members and not heap.lanes <= set(held) for heap in self._heaps.values())

    def weigh(self, opened: list[LaneHeap], guest: Kind | None) -> None:
        """Effective weights of those that may be picked, ``guest`` (one of its kind) with them."""
        counts: dict[Kind, int] = {guest: 1} if guest else {}
        for heap in opened:
            for kind, members in heap.kinds.items():
                counts[kind] = counts.get(kind, 0) + members
        if counts != self._counted:
            self._counted = counts
            weights = effective_weights({kind: (kind.entitlement, n) for kind, n in counts.items()})
            self.total = math.fsum(sorted(weights[kind] * n for kind, n in counts.items()))
            self._changes += 1
            for kind, weight in weights.items():
                if weight != kind.weight:
                    kind.weight, kind.changed = weight, self._changes
        for heap in opened:
            if any(kind.changed > heap.built for kind in heap.kinds):
                heap.built = self._changes
                heap.rebuild()

    def bound_debts(self, slots: int) -> None:
        if self.total > 0 and slots > 0:
            self._debt = DEBT_SECONDS * slots / self.total

    def _keep_back(self, entity: Entity, capped: bool) -> None:
        if capped and entity.lanes:
            self.capped[entity.id] = entity
        else:
            self.capped.pop(entity.id, None)

    def _place(self, entity: Entity) -> LaneHeap:
        """The heap of its lanes. Kinds whose weights change have heaps of their own: so a new
        weight of one pro tenant does not mean a new heap of ten thousand standard ones."""
        kind = entity.kind if entity.kind.bounded else None
        heap = self._heaps.get((entity.lanes, kind))
        if heap is None:
            heap = LaneHeap(entity.lanes, [], {})
            self._heaps[entity.lanes, kind] = heap
        entity.lanes = heap.lanes  # the same object: settle compares by identity
        return heap

    def _move(self, entity: Entity, heap: LaneHeap | None) -> None:
        old = entity.heap
        if old is heap:
            return
        if old is not None:
            entity.served += old.shift(self.virtual_time)
            old.leave(entity)
        if heap is None:
            return
        if old is None:
            self.lift(entity)
        entity.served -= heap.shift(self.virtual_time)
        heap.join(entity)
