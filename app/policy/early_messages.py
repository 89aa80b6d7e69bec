"""Whether the message of a new job may be sent while its row is still being committed.

Only in a pool whose express lane took all new jobs of late: the message of a job that is queued
after all is useless, though harmless.
"""

from __future__ import annotations

from collections.abc import Hashable

#: Groups of new jobs in a row that the express lane took as a whole.
STREAK = 3


class EarlyMessages:
    """The last admissions of one process, by pool."""

    def __init__(self) -> None:
        self._streaks: dict[Hashable, int] = {}

    def allowed(self, pool: Hashable) -> bool:
        return self._streaks.get(pool, 0) >= STREAK

    def note(self, pool: Hashable, *, all_express: bool) -> None:
        """After a group: whether all of its jobs for this pool went by the express lane."""
        self._streaks[pool] = self._streaks.get(pool, 0) + 1 if all_express else 0

    def forget(self) -> None:
        """Begin anew, say because a group could not be admitted."""
        self._streaks.clear()
