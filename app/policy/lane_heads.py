"""Lane heads: where in a lane its queued jobs are, so that a walk skips what is dispatched.

A lane is ordered by priority, then by id. Entries of dispatched jobs stay in its index until they
can be removed, which a long transaction prevents: a walk from the beginning would pass all of
them. Here a lane is a list of stretches, each of one priority from one id to another, which cover
every queued job that arrived; the last stretch of a priority has no end. A retry has an older id
than what was dispatched since and gets a stretch of its own.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator

#: No id is as high.
OPEN = "ffffffff-ffff-ffff-ffff-ffffffffffff"
#: Stretches of a lane's priority; beyond, they become one.
MOST_STRETCHES = 16

#: The negated priority, so that they sort as the lane does; the first and the last id.
Stretch = tuple[int, str, str]


class LaneHeads:
    __slots__ = ("_stretches",)

    def __init__(self) -> None:
        self._stretches: list[Stretch] = []

    def __iter__(self) -> Iterator[tuple[int, str, str]]:
        """Priority, first and last id of each stretch, in the order of the lane."""
        return ((-negated, first, last) for negated, first, last in self._stretches)

    def __len__(self) -> int:
        return len(self._stretches)

    def add(self, priority: int, first: str, last: str) -> None:
        """Jobs of this priority were queued, none with an id outside of these."""
        negated = -priority
        same = [each for each in self._stretches if each[0] == negated]
        if not same:
            joined = [(negated, first, OPEN)]
        elif first >= same[-1][1]:
            return
        else:
            joined = self._join(same, (negated, first, last))
        start = bisect_left(self._stretches, (negated,))
        self._stretches[start : start + len(same)] = joined

    def advance(self, priority: int, job_id: str) -> None:
        """All up to this job are gone."""
        negated = -priority
        self._stretches = [
            (level, max(first, job_id) if level == negated else first, last)
            for level, first, last in self._stretches
            if level > negated or (level == negated and last >= job_id)
        ]

    @staticmethod
    def _join(same: list[Stretch], new: Stretch) -> list[Stretch]:
        """The stretches of one priority with one more; those that overlap become one."""
        joined: list[Stretch] = []
        for level, first, last in sorted([*same, new]):
            if joined and first <= joined[-1][2]:
                joined[-1] = (level, joined[-1][1], max(last, joined[-1][2]))
            else:
                joined.append((level, first, last))
        if len(joined) > MOST_STRETCHES:
            joined = [(new[0], joined[0][1], OPEN)]
        return joined
