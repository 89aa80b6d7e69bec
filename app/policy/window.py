"""How much of the line may be at the broker. Pure.

The window is what makes fairness, priority and cancellation real: they apply to the line
in PostgreSQL, not to what is at the broker.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

#: Work waits at the broker for as long as the scheduler may need to bring more: its turn, the
#: message and the claim. How long that is depends on the machine and is found out, between
#: these bounds and from the first one on: too much for a moment delays a newcomer, too little
#: leaves slots idle until somebody looks.
BRIDGE_SECONDS = 0.25
LEAST_BRIDGE_SECONDS = 0.02
MOST_BRIDGE_SECONDS = 0.5
#: Share of busy slots below which more is needed, and above which less may do.
IDLE_SHARE = 0.85
BUSY_SHARE = 0.95
#: Jobs up to this length are supplied by the bridge.
MOMENT_SECONDS = 0.1
#: From this length of a job on none has to wait there: the moment until the next one comes is
#: lost on it. In between the part of a round that waits falls evenly.
LONG_SECONDS = 10.0
#: Never more than this many jobs of a pool in flight.
CEILING = 5000
#: Slot-seconds of work in one message, about. A message costs as much as some ten jobs that do
#: nothing, but what is in it is one worker's.
MESSAGE_SECONDS = 1.0

T = TypeVar("T")


def window(slots: int, ended_per_second: float, bridge: float = BRIDGE_SECONDS) -> int:
    """Jobs of a pool that may be in flight, with ``slots`` alive and this rate of endings.

    As many as there are slots, and a reserve. What is in it is ahead of whoever comes next, so
    it is as small as it may be: ``bridge`` seconds of work for jobs of a moment, up to a second
    round for those of a second, hardly any for long ones, where slots that fall free together
    cost less than the wait of a newcomer.
    """
    if slots <= 0:
        return 0
    if ended_per_second <= 0:  # nothing is known yet
        return min(CEILING, 2 * slots)
    seconds = slots / ended_per_second
    if seconds <= MOMENT_SECONDS:
        reserve = ended_per_second * bridge
    else:
        part = (LONG_SECONDS - seconds) / (LONG_SECONDS - MOMENT_SECONDS)
        reserve = slots * max(0.0, part)
    return min(CEILING, slots + max(1, math.ceil(reserve)))


def next_bridge(bridge: float, busy: int, slots: int) -> float:
    """The bridge after a look at the slots of a pool with a line: they should all be busy.

    Slots that idle although somebody waits wait for messages; where all are busy, work waits
    at the broker in vain.
    """
    if slots <= 0:
        return bridge
    if busy < IDLE_SHARE * slots:
        return min(MOST_BRIDGE_SECONDS, bridge * 2)
    if busy > BUSY_SHARE * slots:
        return max(LEAST_BRIDGE_SECONDS, bridge * 0.6)
    return bridge


def smoothed_rate(rate: float, ended: int, seconds: float) -> float:
    """The rate of endings, following a rise at once and a fall within about a second."""
    if seconds <= 0:
        return rate
    measured = ended / seconds
    if measured >= rate:
        return measured
    return rate + (measured - rate) * min(1.0, seconds)


def refs_in_message(most: int, seconds: float | None, unmeasured: int) -> int:
    """References that one message may carry, of jobs that take so long; None: ``unmeasured``."""
    if seconds is None:
        return min(most, unmeasured)
    return max(1, min(most, int(MESSAGE_SECONDS / max(seconds, 1e-6))))


def packs(items: Sequence[T], most: int, workers: int) -> Iterator[Sequence[T]]:
    """Split ``items`` into messages of at most ``most``, but enough of them for every worker."""
    if not items:
        return
    size = max(1, min(most, math.ceil(len(items) / max(1, workers))))
    for start in range(0, len(items), size):
        yield items[start : start + size]
