"""Quarantine of a job type: one that mostly fails gets fewer tries until it recovers.

Entering takes more than half of the runs, leaving less than a quarter, so that a type near
the limit does not go in and out. A type that hardly runs is not held: too few runs prove
nothing, and its quarantine ends with its traffic.
"""

from __future__ import annotations

from tasks.retry.window import Window

#: Runs that count are at most this old.
WINDOW_SECONDS = 3600.0
#: Fewer runs than this say nothing.
MIN_RUNS = 50
#: A type enters above this share of bad runs, and leaves below the other.
ENTER_SHARE = 0.5
LEAVE_SHARE = 0.25
#: Tries that a job of a quarantined type may spend.
QUARANTINE_TRIES = 2


def quarantined(window: Window, was: bool) -> bool:
    """Whether a type with these runs in the last hour is quarantined, given that it ``was``."""
    if window.total < MIN_RUNS:
        return False
    return window.bad_share >= LEAVE_SHARE if was else window.bad_share > ENTER_SHARE
