"""Run queue: entities that compete under one virtual time.

The paying tenants of a pool are in one, its free accounts among themselves in another. Changes are
only recorded; :meth:`RunQueue.apply_changes` applies them together, each entity by itself, so their
order does not matter.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from app.policy.fairshare.heaps import Entity, LaneHeap, WeightClass
from app.policy.fairshare.weights import effective_weights

#: Nobody has to wait longer than about this for what it used before.
DEBT_SECONDS = 3600.0


class RunQueue:
    def __init__(self, virtual_time: float) -> None:
        self.virtual_time = virtual_time
        #: Waiting tenants that only their cap holds back.
        self.capped: dict[int, Entity] = {}
        #: Effective weight of all that may be picked, as of the last allocation.
        self.total = 0.0
        self._heaps: dict[tuple[frozenset[str], WeightClass | None], LaneHeap] = {}
        self._dirty: list[Entity] = []
        self._highest = virtual_time
        self._debt = math.inf
        self._counted: dict[WeightClass, int] = {}
        self._changes = 0

    def mark_dirty(self, entity: Entity) -> None:
        """Something about it changed; its entry, if any, is void."""
        if not entity.dirty:
            entity.dirty = True
            entity.version += 1
            self._dirty.append(entity)

    def apply_changes(self) -> None:
        """Move every changed entity to the heap where it belongs now."""
        for entity in self._dirty:
            entity.dirty = False
            capped = entity.cap is not None and entity.in_flight >= entity.cap
            if capped or self.capped:
                self._set_capped(entity, capped)
            heap = entity.heap
            if capped or heap is None or heap.lanes is not entity.lanes:
                heap = self._heap_of(entity) if entity.lanes and not capped else None
                self._move(entity, heap)
            self.limit_debt(entity)
            if heap is not None:
                heap.push(entity)
        self._dirty.clear()

    def remove(self, entity: Entity) -> None:
        """It is gone, or competes in the other run queue from now on."""
        self.apply_changes()
        self._set_capped(entity, False)
        self._move(entity, None)
        entity.version += 1

    def forgive_debts(self) -> None:
        """Nobody competes: whoever comes next, comes as an equal."""
        self.apply_changes()
        self.virtual_time = max(self.virtual_time, self._highest)

    def served(self, entity: Entity) -> float:
        """What it was served, in virtual time."""
        return entity.served + self._offset(entity)

    def drop_credit(self, entity: Entity) -> None:
        """It joins: what it did not use while it was away is gone."""
        entity.served = max(entity.served, self.virtual_time)

    def limit_debt(self, entity: Entity) -> None:
        """However much was used, the debt is bounded."""
        offset = self._offset(entity)
        excess = entity.pass_ + offset - self.virtual_time - self._debt
        if excess > 0:
            entity.served -= excess
        served = entity.served + offset
        if served > self._highest:
            self._highest = served

    def open(self, limits: Mapping[str, int]) -> list[LaneHeap]:
        """The heaps of which at least one lane may give a job."""
        opened = []
        for key, heap in list(self._heaps.items()):
            if not heap.members:
                del self._heaps[key]
                continue
            if any(limits.get(lane, 1) > 0 for lane in heap.lanes):
                heap.open(self.virtual_time)
                opened.append(heap)
            else:
                heap.closed = True
        return opened

    def any_waiting(self, held: Collection[str]) -> bool:
        return any(heap.members and not heap.lanes <= set(held) for heap in self._heaps.values())

    def any_in(self, lane: str) -> bool:
        return any(heap.members and lane in heap.lanes for heap in self._heaps.values())

    def weigh(self, opened: list[LaneHeap], guest: WeightClass | None) -> None:
        """Effective weights of those that may be picked, with one of the class ``guest``."""
        counts: dict[WeightClass, int] = {guest: 1} if guest else {}
        for heap in opened:
            for each, members in heap.classes.items():
                counts[each] = counts.get(each, 0) + members
        if counts != self._counted:
            self._counted = counts
            weights = effective_weights({each: (each.entitlement, n) for each, n in counts.items()})
            self.total = math.fsum(sorted(weights[each] * n for each, n in counts.items()))
            self._changes += 1
            for each, weight in weights.items():
                if weight != each.weight:
                    each.weight, each.changed = weight, self._changes
        for heap in opened:
            if any(each.changed > heap.built for each in heap.classes):
                heap.built = self._changes
                heap.rebuild()

    def bound_debts(self, slots: int) -> None:
        if self.total > 0 and slots > 0:
            self._debt = DEBT_SECONDS * slots / self.total

    def _offset(self, entity: Entity) -> float:
        return 0.0 if entity.heap is None else entity.heap.offset_at(self.virtual_time)

    def _set_capped(self, entity: Entity, capped: bool) -> None:
        if capped and entity.lanes:
            self.capped[entity.id] = entity
        else:
            self.capped.pop(entity.id, None)

    def _heap_of(self, entity: Entity) -> LaneHeap:
        """The heap of its lanes. Classes whose weights change have separate heaps: a new weight
        of one pro tenant must not rebuild a heap of ten thousand standard ones."""
        key = (entity.lanes, entity.weight_class if entity.weight_class.bounded else None)
        heap = self._heaps.get(key)
        if heap is None:
            heap = self._heaps[key] = LaneHeap(entity.lanes, [], {})
        entity.lanes = heap.lanes  # the same object: apply_changes compares by identity
        return heap

    def _move(self, entity: Entity, heap: LaneHeap | None) -> None:
        old = entity.heap
        if old is heap:
            return
        if old is not None:
            entity.served += old.offset_at(self.virtual_time)
            old.leave(entity)
        if heap is None:
            return
        if old is None:
            self.drop_credit(entity)
        entity.served -= heap.offset_at(self.virtual_time)
        heap.join(entity)
