"""How much of the line may be at the broker. Pure.

The window is what makes fairness, priority and cancellation real: they apply to the line
in PostgreSQL, not to what is at the broker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

#: Rounds of work that a pool has at hand: one running, one waiting.
ROUNDS = 2
#: Work that must be at hand to bridge one turn of the scheduler, however short the jobs.
BRIDGE_SECONDS = 0.5
#: Never more than this many jobs of a pool in flight.
CEILING = 5000

T = TypeVar("T")


def window(slots: int, ended_per_second: float) -> int:
    """Jobs of a pool that may be in flight, with ``slots`` alive and this rate of endings."""
    if slots <= 0:
        return 0
    return min(CEILING, max(slots * ROUNDS, math.ceil(ended_per_second * BRIDGE_SECONDS)))


def smoothed_rate(rate: float, ended: int, seconds: float) -> float:
    """The rate of endings, following a rise at once and a fall within about a second."""
    if seconds <= 0:
        return rate
    measured = ended / seconds
    if measured >= rate:
        return measured
    return rate + (measured - rate) * min(1.0, seconds)


def packs(items: Sequence[T], most: int, workers: int) -> Iterator[Sequence[T]]:
    """Split ``items`` into messages of at most ``most``, but enough of them for every worker."""
    if not items:
        return
    size = max(1, min(most, math.ceil(len(items) / max(1, workers))))
    for start in range(0, len(items), size):
        yield items[start : start + size]
