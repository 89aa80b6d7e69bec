"""Quarantine of a job type: one that mostly fails gets fewer attempts until it recovers.

A type enters if more than half of its runs fail and leaves below a quarter, so that one near the
limit does not flap. Too few runs prove nothing: a quarantine ends with the type's traffic.
"""

from __future__ import annotations

from tasks.retry.circuit import Window

#: Runs that count are at most this old.
WINDOW_SECONDS = 3600.0
#: Fewer runs than this change nothing.
MIN_RUNS = 50
#: A type enters above this share of bad runs, and leaves below the other.
ENTER_SHARE = 0.5
LEAVE_SHARE = 0.25
#: Attempts of a job of a quarantined type.
QUARANTINE_TRIES = 2


def quarantined(window: Window, was: bool) -> bool:
    """Whether a type with these runs in the last hour is quarantined, given that it ``was``."""
    if window.total < MIN_RUNS:
        return False
    return window.bad_share >= LEAVE_SHARE if was else window.bad_share > ENTER_SHARE
