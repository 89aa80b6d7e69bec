"""Jitter: jobs that many callers schedule for the same full hour do not all come due in one second.

Pure: ``now`` and randomness are passed in.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from random import Random

#: A time no further away than this is exact.
NEAR_SECONDS = 3600.0
#: A later time moves by up to this much, either way.
JITTER_SECONDS = 60.0


def jittered_time(
    execute_at: datetime | None,
    now: datetime,
    chance: Random,
    jitter: bool = True,
    not_after: datetime | None = None,
) -> datetime | None:
    """When to run a job submitted for ``execute_at``.

    The delay is at most half of the time up to ``not_after``, or a job with a narrow window would
    expire before it is due.
    """
    if not jitter or execute_at is None or (execute_at - now).total_seconds() <= NEAR_SECONDS:
        return execute_at
    later = JITTER_SECONDS
    if not_after is not None:
        later = min(later, (not_after - execute_at).total_seconds() / 2)
    return execute_at + timedelta(seconds=chance.uniform(-JITTER_SECONDS, later))
