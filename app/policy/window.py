"""Window: how many jobs of a pool may be at the broker or run. Pure.

Fair share, priority and cancellation apply to the queue in PostgreSQL, not to what is at the
broker; so the window is as small as keeps all slots busy.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TypeVar

#: The reserve at the broker, in seconds of work: as long as the scheduler may need to send more
#: (its turn, the message and the claim). That depends on the machine and is adapted from the first
#: value between the bounds: too much delays a newcomer, too little leaves slots idle.
RESERVE_SECONDS = 0.25
LEAST_RESERVE_SECONDS = 0.1
MOST_RESERVE_SECONDS = 0.5
#: Share of busy slots below which more is needed, and above which less may do.
IDLE_SHARE = 0.85
BUSY_SHARE = 0.95
#: For jobs up to this length the reserve is counted in seconds.
MOMENT_SECONDS = 0.1
#: How long a run that has ended may count as in flight until its worker has written that: see
#: ``GATHER_SECONDS`` of ``tasks.worker.ledger``.
UNWRITTEN_SECONDS = 0.1
#: Jobs from this length on need no reserve: the pause until the next one comes hardly counts.
#: In between, the part of the slots with a job in reserve falls linearly.
LONG_SECONDS = 10.0
#: Shorter jobs are bound by the processor, not by slots.
LEAST_LENGTH_SECONDS = 0.01
#: Times the measured rate of endings that is believed to be possible.
MOST_RISE = 4.0
#: The window is never larger. More rows may be in flight, by runs whose end is not written yet.
CEILING = 5000
#: Seconds of work for each slot that are worth a dispatch of their own: a dispatch costs as much as
#: some ten jobs that do nothing, but is ahead of whatever is submitted next.
BATCH_SECONDS = 0.1
#: … and that one message may carry to a worker: more, as dispatches are late by up to a turn of the
#: scheduler, and the rest of one should not be a message of its own.
MESSAGE_SECONDS = 2 * BATCH_SECONDS
#: The express lane's credit is renewed so often even if nothing changed: it is good for a minute …
GRANT_SECONDS = 5.0
#: … and so often while little of it was spent: each time is a commit.
REFILL_SECONDS = 0.25

T = TypeVar("T")


def window(slots: int, ended_per_second: float, reserve_seconds: float = RESERVE_SECONDS) -> int:
    """Jobs of a pool that may be in flight, with ``slots`` alive and this rate of endings.

    One per slot, a reserve, and what is sent at a time. The reserve is ahead of whatever is
    submitted next, so it is small: ``reserve_seconds`` of work for the shortest jobs, up to one
    more per slot for jobs of a second, hardly any for long ones, where idle slots cost less than
    the wait of a newcomer.
    """
    if slots <= 0:
        return 0
    if ended_per_second <= 0:  # nothing is known yet
        return min(CEILING, 2 * slots)
    seconds = slots / ended_per_second
    if seconds <= MOMENT_SECONDS:
        reserve = ended_per_second * reserve_seconds
    else:
        part = (LONG_SECONDS - seconds) / (LONG_SECONDS - MOMENT_SECONDS)
        reserve = slots * max(0.0, part)
    return min(CEILING, slots + max(1, math.ceil(reserve)) + batch(ended_per_second) - 1)


def still_in_flight(in_flight: int, ended_per_second: float) -> int:
    """Of the jobs that are in flight by their rows, those whose run has probably not ended.

    While a queue is long a worker writes what ended in groups. Without this, jobs that take up no
    slot any more would take up the window.
    """
    return max(0, in_flight - int(ended_per_second * UNWRITTEN_SECONDS))


def expected_rate(ended_per_second: float, busy: int, slots: int, seconds: float | None) -> float:
    """The rate of endings if all slots were busy with jobs that take so long; None: not known.

    A window that is too small for the time a dispatch takes holds the rate down, and a rate that
    is low keeps the window small. Only while slots idle: if they are busy, these jobs take longer
    than others of their type.
    """
    if seconds is None or busy >= BUSY_SHARE * slots:
        return ended_per_second
    possible = slots / max(seconds, LEAST_LENGTH_SECONDS)
    return max(ended_per_second, min(possible, ended_per_second * MOST_RISE))


def batch(ended_per_second: float) -> int:
    """Jobs worth a dispatch of their own, while more wait than fit: a message for each worker."""
    return max(1, min(CEILING // 10, int(ended_per_second * BATCH_SECONDS)))


def room_to_fill(room: int, ready: int, ended_per_second: float) -> int:
    """How many of the ``ready`` jobs to send now, if there is room for so many.

    While all slots are busy a turn would find room for one or two, and each of them would cost a
    statement, a message and a claim. So it is left until there is room for a batch.
    """
    return room if room >= min(ready, batch(ended_per_second)) else 0


def seconds_to_room(room: int, ready: int, ended_per_second: float) -> float:
    """When ``room_to_fill`` will find enough, if endings go on at this rate; 0 if it does now."""
    missing = min(ready, batch(ended_per_second)) - room
    return missing / ended_per_second if missing > 0 and ended_per_second > 0 else 0.0


def lane_credit(slots: int, in_flight: int, ended_per_second: float) -> int:
    """Jobs that the express lane may take until its credit is renewed.

    One for each slot that is free, or will be by then at this rate of endings; within the window,
    and two for each slot at most: it is not for tenants whose caps it might reach.
    """
    soon = min(slots, int(ended_per_second * REFILL_SECONDS))
    return max(0, min(slots + soon, window(slots, ended_per_second)) - in_flight)


def credit_is_due(credit: int, wanted: int, seconds: float) -> bool:
    """Whether to write the express lane's credit, last written so many seconds ago.

    At once if there is half as much again as there should be, or half of it.
    """
    if credit == wanted:
        return seconds >= GRANT_SECONDS
    return not wanted / 2 <= credit < 1.5 * wanted or seconds >= REFILL_SECONDS


def refill_seconds(credit: int, ended_per_second: float) -> float:
    """When half of the express lane's credit will be spent, if as many jobs come as end.

    Late enough if there is none: a job that gets no credit is queued, and wakes the scheduler.
    """
    if credit <= 0 or ended_per_second <= 0:
        return REFILL_SECONDS
    return min(REFILL_SECONDS, credit / 2 / ended_per_second)


def next_reserve(reserve: float, busy: int, slots: int) -> float:
    """The reserve in seconds, adapted to how many slots of a pool with a queue are busy.

    Idle slots although jobs are queued wait for messages; where all are busy, less may do.
    """
    if slots <= 0:
        return reserve
    if busy < IDLE_SHARE * slots:
        return min(MOST_RESERVE_SECONDS, reserve * 2)
    if busy > BUSY_SHARE * slots:
        return max(LEAST_RESERVE_SECONDS, reserve * 0.6)
    return reserve


def smoothed_rate(rate: float, ended: int, seconds: float) -> float:
    """The rate of endings, following a rise at once and a fall within about a second."""
    if seconds <= 0:
        return rate
    measured = ended / seconds
    if measured >= rate:
        return measured
    return rate + (measured - rate) * min(1.0, seconds)


def refs_in_message(most: int, slots: int, seconds: float | None, unmeasured: int) -> int:
    """References that one message may carry, for a worker of so many slots, of jobs that take so
    long; None: ``unmeasured``."""
    if seconds is None:
        return min(most, unmeasured)
    return max(1, min(most, int(slots * MESSAGE_SECONDS / max(seconds, 1e-6) + 1e-9)))


def packs(items: Sequence[T], most: int, workers: int) -> Iterator[Sequence[T]]:
    """Split ``items`` into messages of at most ``most``, but enough of them for every worker."""
    if not items:
        return
    size = max(1, min(most, math.ceil(len(items) / max(1, workers))))
    for start in range(0, len(items), size):
        yield items[start : start + size]
