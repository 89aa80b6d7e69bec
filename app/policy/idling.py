"""Idling: when a scheduler without queued jobs looks for some again. Pure.

Work that others create is announced (:mod:`models.wakeups`), and what becomes due by itself is
known in advance. So a scheduler without either may pause until the next of these, and looks once
in a while all the same: a wakeup may have been lost.
"""

from __future__ import annotations

#: Pause between two looks while work is expected.
SHORT_SECONDS = 0.04
#: The longest pause: how late work starts whose wakeup was lost.
LONG_SECONDS = 2.0
#: Work is expected for so long after the last: longer than the time between two wakeups that a
#: process sends, so that what is created without one is seen at a short interval.
EXPECTED_SECONDS = 1.2


def pause_seconds(
    *, hears: bool, quiet_seconds: float, look_within: float, due_in_seconds: float | None
) -> float:
    """Seconds until the next look.

    ``hears``: wakeups would be heard; ``quiet_seconds``: since jobs were queued, or a wakeup said
    so; ``look_within``: what is in flight can wait for so long; ``due_in_seconds``: until something
    is due by itself, None if nothing is scheduled.
    """
    if not hears or quiet_seconds < EXPECTED_SECONDS:
        return SHORT_SECONDS
    due = LONG_SECONDS if due_in_seconds is None else due_in_seconds
    return max(SHORT_SECONDS, min(due, look_within, LONG_SECONDS))
