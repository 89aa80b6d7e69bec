"""One allocation inside a run queue: picks in order, charged on trial only.

The lowest of every open heap are in one small heap; whoever was picked comes back to it with a
higher trial pass. So a pick costs the logarithm of the number of waiting tenants.

How many jobs wait in a lane is not known. A tenant far behind the others, with few jobs, would get
every pick and leave most of them over, time and again. So nobody is picked for more than about
twice what its lanes gave when they were last empty, unless picks are left when all others have
theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from app.policy.fairshare.heaps import Entity, LaneHeap
from app.policy.fairshare.run_queue import RunQueue


@dataclass(frozen=True, slots=True)
class Grant:
    """Jobs of a tenant that may be dispatched now."""

    tenant_id: int
    jobs: int
    #: Lane → at most so many of them.
    lanes: dict[str, int]


class Allocation:
    """Picks of one run queue. ``limits``, what each lane may still give, is shared and used up."""

    def __init__(
        self,
        run_queue: RunQueue,
        opened: list[LaneHeap],
        limits: dict[str, int],
        quantum: float = 0.0,
        most_at_once: int = 1,
    ) -> None:
        self._run_queue = run_queue
        self._limits = limits
        self._quantum = quantum
        self._most_at_once = most_at_once
        #: Heaps that a limit may close on the way.
        self._limited = {heap for heap in opened if not heap.lanes.isdisjoint(limits)}
        self._picked: list[Entity] = []
        self._spent: dict[int, dict[str, int]] = {}
        #: Who has as many picks as its lanes are thought to hold; None: that no longer counts.
        self._sated: list[tuple[float, int, Entity, LaneHeap]] | None = []
        self._candidates = [
            (heap.offset + entity.pass_, entity.id, entity, heap)
            for heap in opened
            if (entity := heap.pop()) is not None
        ]
        heapify(self._candidates)

    def lowest(self) -> float:
        """The pass of the next to be picked; infinite if there is none."""
        candidates = self._candidates
        while candidates or self._recall_sated():
            if not candidates[0][3].closed:
                return candidates[0][0]
            self._run_queue.mark_dirty(heappop(candidates)[2])
        return inf

    def _recall_sated(self) -> bool:
        """All others have their picks: whoever might hold more may have the rest."""
        if not self._sated:
            return False
        self._candidates.extend(self._sated)
        heapify(self._candidates)
        self._sated = None
        return True

    def take(self, most: int, rival: float) -> list[Entity]:
        """Pick up to ``most`` times the lowest pass, as long as it is not above the rival's."""
        picks: list[Entity] = []
        candidates, limited = self._candidates, self._limited
        while most > 0 and (candidates or self._recall_sated()):
            pass_, number, entity, heap = candidates[0]
            if heap.closed:
                self._run_queue.mark_dirty(heappop(candidates)[2])
                continue
            if pass_ > rival:
                break
            most -= 1
            picks.append(entity)
            entity.granted = jobs = entity.granted + 1
            if limited and heap in limited:
                self._spend(entity, heap)
            if entity.cap is not None and entity.in_flight + jobs >= entity.cap:
                heappop(candidates)
            elif jobs >= entity.held and self._sated is not None:
                heappop(candidates)
                self._sated.append((self._trial_pass(entity, heap), number, entity, heap))
            elif jobs % self._at_once(entity) == 0:
                heapreplace(candidates, (self._trial_pass(entity, heap), number, entity, heap))
            if jobs == 1:
                self._picked.append(entity)
                following = heap.pop()
                if following is not None:
                    pass_ = heap.offset + following.pass_
                    heappush(candidates, (pass_, following.id, following, heap))
        return picks

    @staticmethod
    def _trial_pass(entity: Entity, heap: LaneHeap) -> float:
        trial = entity.pending + entity.granted * entity.expected
        return heap.offset + entity.served + trial / entity.weight_class.weight

    def _at_once(self, entity: Entity) -> int:
        """Picks in a row: as many of its jobs as fit into the quantum."""
        if not self._quantum:
            return 1
        return max(1, min(self._most_at_once, int(self._quantum / max(entity.expected, 1e-9))))

    def grants(self) -> list[Grant]:
        """What was picked, in order of the first pick. All entities go back to their heaps."""
        mark_dirty, limits = self._run_queue.mark_dirty, self._limits
        for _, _, entity, _ in (*self._candidates, *(self._sated or ())):
            mark_dirty(entity)
        granted = []
        for entity in self._picked:
            mark_dirty(entity)
            jobs, entity.granted = entity.granted, 0
            lanes = dict.fromkeys(entity.lanes, jobs)
            if limits:
                spent = self._spent.get(entity.id, {})
                lanes.update({lane: spent.get(lane, 0) for lane in entity.lanes & limits.keys()})
                lanes = {lane: most for lane, most in lanes.items() if most}
            granted.append(Grant(entity.id, jobs, lanes))
        return granted

    def _spend(self, entity: Entity, heap: LaneHeap) -> None:
        """Use up the limits as if the job came from each limited lane."""
        spent = self._spent.setdefault(entity.id, {})
        limits, last = self._limits, False
        for lane in heap.lanes:
            if limits.get(lane, 0) > 0:
                limits[lane] -= 1
                spent[lane] = spent.get(lane, 0) + 1
                last = last or not limits[lane]
        if last:
            self.close()

    def close(self) -> None:
        """Close the heaps whose lanes may all give no more."""
        for heap in self._limited:
            if not any(self._limits.get(lane, 1) > 0 for lane in heap.lanes):
                heap.closed = True
