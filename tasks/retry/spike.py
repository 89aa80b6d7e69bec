"""Spike of a tenant: an hour far above its own habit. Raises an alert and stops nothing."""

from __future__ import annotations

from collections.abc import Sequence

#: This many times the habit is a spike.
TIMES = 10
#: Fewer hours than this are no habit.
MIN_HOURS = 3
#: Runs an hour that a habit counts at least: a tenant that wakes up is not a runaway.
BASELINE = 100


def spiking(hours: Sequence[int], this_hour: int) -> bool:
    """Whether ``this_hour``'s runs stand out from those of the earlier ``hours`` we know of."""
    if len(hours) < MIN_HOURS:
        return False
    return this_hour >= TIMES * max(BASELINE, sum(hours) / len(hours))
