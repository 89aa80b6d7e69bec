"""Delays before the next run."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

#: Delays after the first, second, … APP_ERROR.
APP_ERROR_SECONDS = (1.0, 5.0, 30.0, 300.0, 1800.0)
#: First and longest delay for a dependency that did not ask for one.
DEPENDENCY_FIRST_SECONDS = 2.0
DEPENDENCY_MAX_SECONDS = 300.0
#: The longest delay that a dependency may ask for.
RETRY_AFTER_MAX_SECONDS = 3600.0
#: The longest delay that a job or its type may ask for: a year.
MOST_WAIT_SECONDS = 365 * 86_400.0
#: Jobs that lost a worker together return within a span that doubles with each crash, so that
#: those beside the one that kills it soon run without it. The first loss proves nothing.
CRASH_SPREAD_SECONDS = 4.0
#: Random share that is added to or taken from a delay, so that jobs do not return together.
JITTER = 0.1


def backoff_seconds(failures: int, waits: Sequence[float] = APP_ERROR_SECONDS) -> float:
    """The delay after ``failures`` failures (at least one); the last of ``waits`` repeats."""
    return waits[min(failures, len(waits)) - 1] if waits else 0.0


def dependency_seconds(deferrals: int, retry_after: float | None) -> float:
    """The delay for a dependency: what it asked for, else doubling up to five minutes.

    A delay of 0 is ignored: its jobs use no attempts, so they would return at once for ever.
    """
    if retry_after is not None and retry_after > 0:
        return min(retry_after, RETRY_AFTER_MAX_SECONDS)
    doubled = DEPENDENCY_FIRST_SECONDS * 2.0 ** min(deferrals, 20)
    return min(doubled, DEPENDENCY_MAX_SECONDS)


def crash_seconds(crashes: int, chance: Random) -> float:
    """The delay after ``crashes`` lost workers: none at first, then random in a growing span."""
    if crashes < 2:
        return 0.0
    return chance.uniform(0.0, CRASH_SPREAD_SECONDS * 2.0 ** min(crashes - 2, 4))


def jittered(seconds: float, chance: Random, *, never_less: bool = False) -> float:
    """``seconds`` with up to 10 % jitter; ``never_less`` only lengthens (retry-after)."""
    low = 0.0 if never_less else -JITTER
    return seconds * (1.0 + chance.uniform(low, JITTER))
