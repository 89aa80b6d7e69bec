"""One allocation inside a contest: picks in order, charged on trial only.

The lowest of every open heap stand in one small heap; whoever was picked comes back to it
with a higher trial pass. So a pick costs the logarithm of who waits.
"""

from __future__ import annotations

from heapq import heapify, heappop, heappush, heapreplace
from math import inf

from app.policy.fairshare.accounts import Grant
from app.policy.fairshare.contest import Contest
from app.policy.fairshare.heaps import Entity, LaneHeap


class Draw:
    """Picks of one contest. ``rooms``, the limits of lanes, is shared and used up."""

    def __init__(
        self,
        contest: Contest,
        opened: list[LaneHeap],
        rooms: dict[str, int],
        quantum: float = 0.0,
        most_at_once: int = 1,
    ) -> None:
        self._contest = contest
        self._rooms = rooms
        self._quantum = quantum
        self._most_at_once = most_at_once
        #: Heaps that a limit may close on the way.
        self._limited = {heap for heap in opened if not heap.lanes.isdisjoint(rooms)}
        self._picked: list[Entity] = []
        self._spent: dict[int, dict[str, int]] = {}
        self._line = [
            (heap.offset + entity.pass_, entity.id, entity, heap)
            for heap in opened
            if (entity := heap.pop()) is not None
        ]
        heapify(self._line)

    def lowest(self) -> float:
        """The pass of who is next; infinite if nobody is."""
        line = self._line
        while line and line[0][3].closed:
            self._contest.touch(heappop(line)[2])
        return line[0][0] if line else inf

    def take(self, most: int, rival: float) -> list[Entity]:
        """Pick up to so many times whose pass is the lowest, and not above the rival's."""
        picks: list[Entity] = []
        line, limited = self._line, self._limited
        while most > 0 and line:
            pass_, number, entity, heap = line[0]
            if heap.closed:
                self._contest.touch(heappop(line)[2])
                continue
            if pass_ > rival:
                break
            most -= 1
            picks.append(entity)
            entity.granted = jobs = entity.granted + 1
            if limited and heap in limited:
                self._spend(entity, heap)
            if entity.cap is not None and entity.in_flight + jobs >= entity.cap:
                heappop(line)
            elif jobs % self._at_once(entity) == 0:
                trial = entity.pending + jobs * entity.expected
                pass_ = heap.offset + entity.served + trial / entity.kind.weight
                heapreplace(line, (pass_, number, entity, heap))
            if jobs == 1:
                self._picked.append(entity)
                following = heap.pop()
                if following is not None:
                    pass_ = heap.offset + following.pass_
                    heappush(line, (pass_, following.id, following, heap))
        return picks

    def _at_once(self, entity: Entity) -> int:
        """Picks before it stands back: as many of its jobs as nobody notices."""
        if not self._quantum:
            return 1
        return max(1, min(self._most_at_once, int(self._quantum / max(entity.expected, 1e-9))))

    def grants(self) -> list[Grant]:
        """What was picked, first come first. Everybody goes back to the heaps."""
        touch, rooms = self._contest.touch, self._rooms
        for _, _, entity, _ in self._line:
            touch(entity)
        granted = []
        for entity in self._picked:
            touch(entity)
            jobs, entity.granted = entity.granted, 0
            if rooms:
                spent = self._spent.get(entity.id, {})
                each = (
                    (lane, spent.get(lane, 0) if lane in rooms else jobs) for lane in entity.lanes
                )
                lanes = {lane: most for lane, most in each if most}
            else:
                lanes = dict.fromkeys(entity.lanes, jobs)
            granted.append(Grant(entity.id, jobs, lanes))
        return granted

    def _spend(self, entity: Entity, heap: LaneHeap) -> None:
        """Use up the limits as if the job came from each limited lane."""
        spent = self._spent.setdefault(entity.id, {})
        rooms, last = self._rooms, False
        for lane in heap.lanes:
            if rooms.get(lane, 0) > 0:
                rooms[lane] -= 1
                spent[lane] = spent.get(lane, 0) + 1
                last = last or not rooms[lane]
        if last:
            self.close()

    def close(self) -> None:
        """Close the heaps of which no lane has room any more."""
        for heap in self._limited:
            if not any(self._rooms.get(lane, 1) > 0 for lane in heap.lanes):
                heap.closed = True
