"""How long to wait before the next run."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

#: Waits after the first, second, … failure of the job's own making.
APP_ERROR_SECONDS = (1.0, 5.0, 30.0, 300.0, 1800.0)
#: First and longest wait for a dependency that did not say how long it needs.
DEPENDENCY_FIRST_SECONDS = 2.0
DEPENDENCY_MAX_SECONDS = 300.0
#: A dependency that asks for more than this is asked again after this long.
RETRY_AFTER_MAX_SECONDS = 3600.0
#: Jobs that lost a worker together come back within a span that doubles with each crash, so
#: that those beside a killer soon run without it; the first loss may be anybody's fault.
CRASH_SPREAD_SECONDS = 4.0
#: Share of a wait that chance may add or take, so that jobs do not come back in step.
JITTER = 0.1


def backoff_seconds(failures: int, waits: Sequence[float] = APP_ERROR_SECONDS) -> float:
    """The wait after ``failures`` failures (at least one); the last of ``waits`` repeats."""
    return waits[min(failures, len(waits)) - 1] if waits else 0.0


def dependency_seconds(deferrals: int, retry_after: float | None) -> float:
    """The wait for a dependency: what it asked for, else doubling up to five minutes.

    One that asks for no wait at all has said nothing: its jobs spend no tries, so they would
    come back at once for ever.
    """
    if retry_after is not None and retry_after > 0:
        return min(retry_after, RETRY_AFTER_MAX_SECONDS)
    doubled = DEPENDENCY_FIRST_SECONDS * 2.0 ** min(deferrals, 20)
    return min(doubled, DEPENDENCY_MAX_SECONDS)


def crash_seconds(crashes: int, chance: Random) -> float:
    """The wait after ``crashes`` lost workers: none at first, then anywhere in a growing span."""
    if crashes < 2:
        return 0.0
    return chance.uniform(0.0, CRASH_SPREAD_SECONDS * 2.0 ** min(crashes - 2, 4))


def jittered(seconds: float, chance: Random, *, never_less: bool = False) -> float:
    """``seconds`` moved by up to a tenth; ``never_less`` only lengthens (retry-after)."""
    low = 0.0 if never_less else -JITTER
    return seconds * (1.0 + chance.uniform(low, JITTER))
