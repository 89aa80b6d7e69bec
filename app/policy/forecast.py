"""How long a job in the queue will wait, by how fast its tenant's jobs start. Pure.

A straight line: what is ahead, divided by the rate. The rate is the tenant's part of the slots
over what a job takes, until it has been measured for a while; and never more than all the slots
that it may have could do. It does not foresee who else will submit, a circuit that opens or
workers that come and go; how far off it is, is measured and published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: A rate below this is none: one job in eleven days.
LEAST_PER_SECOND = 1e-6
#: A job that does nothing still takes its slot for a moment.
LEAST_SECONDS = 0.001
#: A rate counts as measured after so long, or after so many starts: the first fill idle slots.
STEADY_SECONDS = 5.0
STEADY_STARTS = 100
#: Between two jobs a slot is empty for no longer than this.
CHANGE_SECONDS = 0.25
#: What has run for long may end at any moment, but has not: so much of its time counts at most.
MOST_ELAPSED = 0.9


@dataclass(frozen=True, slots=True)
class QueueFlow:
    """How a tenant's jobs get to run in a pool."""

    #: Slots that its jobs can get, and how many of them are taken.
    slots: int
    in_flight: int
    #: What a job takes.
    mean_seconds: float
    #: The tenant's part of the slots, between 0 and 1.
    share: float
    #: Its jobs at the broker, which come before those in the queue.
    under_way: int = 0
    #: As measured lately; None if nothing was.
    started_per_second: float | None = None
    #: Starts that are known of the last minute, and how long ago the first of them was.
    starts: int = 0
    starts_seconds: float = 0.0
    #: Jobs it may have in flight, and those that it has.
    cap: int | None = None
    own: int = 0
    #: For how long the latter have run, in the mean.
    elapsed_seconds: float = 0.0


def starts_per_second(flow: QueueFlow) -> float:
    """The tenant's rate of starts: measured, or else what its share of the slots should give."""
    seconds = max(LEAST_SECONDS, flow.mean_seconds)
    slots = min(flow.slots * min(1.0, max(0.0, flow.share)), most_slots(flow))
    measured = flow.started_per_second
    steady = flow.starts_seconds >= STEADY_SECONDS or flow.starts >= STEADY_STARTS
    # Long jobs start in waves; between two of them the measured rate says nothing.
    pause = slots / (seconds + CHANGE_SECONDS) / 2
    if measured is None or not steady or measured < pause:
        return slots / seconds
    return min(measured, most_slots(flow) / seconds)


def most_slots(flow: QueueFlow) -> int:
    """Slots that it may have at once, if nobody else wants any."""
    return flow.slots if flow.cap is None else min(flow.slots, flow.cap)


def predict_wait(ahead: int, flow: QueueFlow, not_before: float = 0.0) -> float | None:
    """Seconds until the job starts that has ``ahead`` of its tenant's before it in the queue.

    ``not_before``: nothing of its lane starts sooner. None if nothing starts at all.
    """
    if flow.slots <= 0:
        return None
    # Others that wait get their part of the idle slots as well.
    room = math.ceil(max(0, flow.slots - flow.in_flight) * min(1.0, max(0.0, flow.share)))
    capped = flow.cap is not None and flow.cap - flow.own < max(1, room)
    if flow.cap is not None and capped:
        room = max(0, flow.cap - flow.own)
    wait = max(0.0, not_before)
    if ahead < room:
        return wait
    rate = starts_per_second(flow)
    if rate < LEAST_PER_SECOND:
        return None
    # At its cap, what is under way is what the others wait for.
    before = ahead + 1 - room + (0 if room or capped else flow.under_way)
    elapsed = 0.0
    if capped and not room:
        most = MOST_ELAPSED * max(LEAST_SECONDS, flow.mean_seconds)
        elapsed = min(max(0.0, flow.elapsed_seconds), most) / most_slots(flow)
    return wait + max(0.0, before / rate - elapsed)


def predict_start(flow: QueueFlow) -> float | None:
    """Seconds until one starts that is at the broker, with all of its tenant's that are."""
    if flow.slots <= 0:
        return None
    if flow.in_flight < flow.slots or not flow.under_way:
        return 0.0
    rate = starts_per_second(flow)
    return None if rate < LEAST_PER_SECOND else flow.under_way / rate


def predict_paced(ahead: int, per_second: float, share: float, not_before: float) -> float | None:
    """The same for a job whose dependency takes so many calls: in step, however many slots."""
    rate = per_second * min(1.0, max(0.0, share))
    return None if rate < LEAST_PER_SECOND else max(0.0, not_before) + (ahead + 1) / rate


def error_ratio(predicted_seconds: float, actual_seconds: float) -> float:
    """How far off a prediction was, as a part of the wait; waits under a second count as one."""
    return abs(predicted_seconds - actual_seconds) / max(1.0, actual_seconds)
