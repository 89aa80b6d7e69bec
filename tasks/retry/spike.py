"""Usage spike of a tenant: an hour far above its average. Raises an alert and stops nothing."""

from __future__ import annotations

from collections.abc import Sequence

#: This many times the average is a spike.
TIMES = 10
#: Fewer hours than this are no average.
MIN_HOURS = 3
#: The average counts as at least this many runs per hour: starting to use it is no spike.
BASELINE = 100


def spiking(hours: Sequence[int], this_hour: int) -> bool:
    """Whether the runs of ``this_hour`` are a spike, given those of earlier ``hours``."""
    if len(hours) < MIN_HOURS:
        return False
    return this_hour >= TIMES * max(BASELINE, sum(hours) / len(hours))
