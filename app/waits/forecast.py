"""How long a job in the line will wait, by how fast its tenant's jobs start. Pure.

A straight line: what is ahead, divided by the rate. It does not foresee who else will submit,
a circuit that opens or workers that come and go; how far off it is, is measured and published.
"""

from __future__ import annotations

from dataclasses import dataclass

#: A rate below this is none: one job in eleven days.
LEAST_PER_SECOND = 1e-6
#: A job that does nothing still takes its slot for a moment.
LEAST_SECONDS = 0.001


@dataclass(frozen=True, slots=True)
class Flow:
    """How a tenant's jobs get to run in a pool."""

    #: Slots that its jobs can get, and how many of them are taken.
    slots: int
    in_flight: int
    #: What a job takes.
    mean_seconds: float
    #: The tenant's part of the slots, between 0 and 1.
    share: float
    #: Its jobs at the broker, which come before those in the line.
    under_way: int = 0
    #: As measured lately; None if nothing was.
    started_per_second: float | None = None
    #: Jobs it may have in flight.
    cap: int | None = None


def starts_per_second(flow: Flow) -> float:
    """The tenant's rate of starts: measured, or else what its share of the slots should give."""
    if flow.started_per_second is not None and flow.started_per_second > LEAST_PER_SECOND:
        return flow.started_per_second
    slots = flow.slots * min(1.0, max(0.0, flow.share))
    if flow.cap is not None:
        slots = min(slots, flow.cap)
    return slots / max(LEAST_SECONDS, flow.mean_seconds)


def predict_wait(ahead: int, flow: Flow, not_before: float = 0.0) -> float | None:
    """Seconds until the job starts that has ``ahead`` of its tenant's before it in the line.

    ``not_before``: nothing of its lane starts sooner. None if nothing starts at all.
    """
    if flow.slots <= 0:
        return None
    free = max(0, flow.slots - flow.in_flight)
    before = ahead + 1 - free if free else ahead + 1 + flow.under_way
    rate = starts_per_second(flow)
    if before > 0 and rate < LEAST_PER_SECOND:
        return None
    return max(0.0, not_before) + (before / rate if before > 0 else 0.0)


def error_ratio(predicted_seconds: float, actual_seconds: float) -> float:
    """How far off a prediction was, as a part of the wait; waits under a second count as one."""
    return abs(predicted_seconds - actual_seconds) / max(1.0, actual_seconds)
