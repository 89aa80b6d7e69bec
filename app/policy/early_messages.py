"""How a new job that comes alone may begin soon: given to a worker that offers to run it, or by a
message that is sent while its row is still being committed.

A message only in a pool whose express lane took all new jobs of late: that of a job which is queued
after all is useless, though harmless. And not where a worker will probably be given the job.
"""

from __future__ import annotations

from collections.abc import Hashable

#: Groups of new jobs in a row that the express lane took as a whole.
STREAK = 3


class EarlyMessages:
    """The last admissions of one process, by pool."""

    def __init__(self) -> None:
        self._streaks: dict[Hashable, int] = {}
        #: Pools in which a worker offered to run a job, at the last one that came alone.
        self._offered: set[Hashable] = set()

    def allowed(self, pool: Hashable) -> bool:
        return self._streaks.get(pool, 0) >= STREAK

    def offered(self, pool: Hashable) -> bool:
        """Whether to give a job away, without a message."""
        return pool in self._offered

    def note_offer(self, pool: Hashable, *, given: bool, offered: bool) -> None:
        """After a job that came alone: whether a worker was given it, or would take the next."""
        (self._offered.add if given or offered else self._offered.discard)(pool)

    def note(self, pool: Hashable, *, all_express: bool) -> None:
        """After a group: whether all of its jobs for this pool went by the express lane."""
        self._streaks[pool] = self._streaks.get(pool, 0) + 1 if all_express else 0

    def forget(self) -> None:
        """Begin anew, say because a group could not be admitted."""
        self._streaks.clear()
