"""Forecast: how long a queued job will wait, by how fast its tenant's jobs start. Pure.

What is ahead divided by the rate of starts: the tenant's share of the slots over the duration of a
job, until the rate has been measured for a while, and never more than its slots could do. Does not
foresee submissions, circuits or workers that come and go; the error is measured and published.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

#: A lower rate counts as none: one job in eleven days.
LEAST_PER_SECOND = 1e-6
#: A job that does nothing still occupies its slot for a moment.
LEAST_SECONDS = 0.001
#: A rate is measured after so long, or so many starts: the first ones only fill idle slots.
STEADY_SECONDS = 5.0
STEADY_STARTS = 100
#: Between two jobs a slot is empty for no longer than this.
CHANGE_SECONDS = 0.25
#: Largest part of a job's mean duration that counts as elapsed.
MOST_ELAPSED = 0.9


@dataclass(frozen=True, slots=True)
class QueueFlow:
    """How a tenant's jobs start in a pool."""

    #: Slots that its jobs can get, and how many of them are in use.
    slots: int
    in_flight: int
    mean_seconds: float
    #: The tenant's share of the slots, between 0 and 1.
    share: float
    #: Its jobs at the broker, ahead of those that are queued.
    under_way: int = 0
    #: As measured recently; None if nothing was.
    started_per_second: float | None = None
    #: Starts within the last minute, and how long ago the first of them was.
    starts: int = 0
    starts_seconds: float = 0.0
    #: Jobs it may have in flight, and those it has.
    cap: int | None = None
    own: int = 0
    #: How long the latter have run, in the mean.
    elapsed_seconds: float = 0.0


def starts_per_second(flow: QueueFlow) -> float:
    """The tenant's rate of starts: measured, or else expected by its share of the slots."""
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
    """Slots that it may have at once if nobody else needs any."""
    return flow.slots if flow.cap is None else min(flow.slots, flow.cap)


def predict_wait(ahead: int, flow: QueueFlow, not_before: float = 0.0) -> float | None:
    """Seconds until a job starts that has ``ahead`` queued jobs of its tenant before it.

    ``not_before``: nothing of its lane starts sooner. None if nothing starts at all.
    """
    if flow.slots <= 0:
        return None
    # Others that wait get their share of the idle slots as well.
    idle = math.ceil(max(0, flow.slots - flow.in_flight) * min(1.0, max(0.0, flow.share)))
    capped = flow.cap is not None and flow.cap - flow.own < max(1, idle)
    if flow.cap is not None and capped:
        idle = max(0, flow.cap - flow.own)
    wait = max(0.0, not_before)
    if ahead < idle:
        return wait
    rate = starts_per_second(flow)
    if rate < LEAST_PER_SECOND:
        return None
    # At its cap, the queued jobs wait for those in flight to end.
    before = ahead + 1 - idle + (0 if idle or capped else flow.under_way)
    elapsed = 0.0
    if capped and not idle:
        most = MOST_ELAPSED * max(LEAST_SECONDS, flow.mean_seconds)
        elapsed = min(max(0.0, flow.elapsed_seconds), most) / most_slots(flow)
    return wait + max(0.0, before / rate - elapsed)


def predict_start(flow: QueueFlow) -> float | None:
    """Seconds until a job at the broker starts, behind all of its tenant's that are there."""
    if flow.slots <= 0:
        return None
    if flow.in_flight < flow.slots or not flow.under_way:
        return 0.0
    rate = starts_per_second(flow)
    return None if rate < LEAST_PER_SECOND else flow.under_way / rate


def predict_paced(ahead: int, per_second: float, share: float, not_before: float) -> float | None:
    """Seconds until a job starts whose dependency accepts so many calls per second."""
    rate = per_second * min(1.0, max(0.0, share))
    return None if rate < LEAST_PER_SECOND else max(0.0, not_before) + (ahead + 1) / rate


def error_ratio(predicted_seconds: float, actual_seconds: float) -> float:
    """Error of a prediction relative to the wait; waits under a second count as one."""
    return abs(predicted_seconds - actual_seconds) / max(1.0, actual_seconds)
