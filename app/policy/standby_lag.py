"""How far a standby is behind its primary. Pure.

A standby's own account would not do: the time of the last transaction that it replayed grows while
nothing is written, and one that is cut off from its primary believes for a minute that it has
everything. So the primary is asked, now and then, how far its log has come: what it had written at
a moment is visible on a standby that has replayed as far.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple


class LogSample(NamedTuple):
    """How far the primary's log had come when it was asked."""

    #: Just before the question, by the asking process's own clock.
    at: float
    position: int
    #: Which log: another server's, or that of another timeline, has other positions.
    history: str = ""


def lag_seconds(
    samples: Iterable[LogSample], position: int | None, now: float, history: str = ""
) -> float:
    """How old, at most, is what a standby shows that has replayed this log up to ``position``."""
    if position is None:
        return math.inf
    shown = (
        sample.at for sample in samples if sample.history == history and sample.position <= position
    )
    return now - max(shown, default=-math.inf)
