"""A job's way from its submission to its end, as steps in order. Pure.

The row knows the run that is on or was the last, the attempts those that gave no result, the
events when it was replayed; these are forgotten sooner than the job, and then only counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class TimelineAttempt:
    """A run that gave no result."""

    lease: int
    worker: str | None
    started_at: datetime | None
    ended_at: datetime
    #: What it made of the job.
    status: str
    error_class: str | None
    error_message: str | None


@dataclass(frozen=True, slots=True)
class Way:
    """What the row says."""

    status: str
    lease: int
    created_at: datetime
    attempt: int = 0
    replays: int = 0
    execute_at: datetime | None = None
    dispatched_at: datetime | None = None
    started_at: datetime | None = None
    finished_at: datetime | None = None
    cancel_requested_at: datetime | None = None
    worker: str | None = None


@dataclass(frozen=True, slots=True)
class Step:
    """One thing that happened."""

    title: str
    at: datetime | None
    #: ``good``, ``bad``, ``warn``, ``now`` or nothing.
    tone: str = ""
    #: Of a run.
    lease: int | None = None
    worker: str | None = None
    ended_at: datetime | None = None
    seconds: float | None = None
    error_class: str | None = None
    message: str | None = None
    #: Until the next run began, or will.
    waited_seconds: float | None = None
    next_at: datetime | None = None


ENDS = {
    "succeeded": ("Succeeded", "good"),
    "dead": ("Dead: it will not be tried again", "bad"),
    "cancelled": ("Cancelled", "warn"),
    "expired": ("Expired: it was too late to start", "warn"),
}
FAILED = {
    "scheduled": ("Run failed; to be tried again", "warn"),
    "queued": ("Run lost; back in the line", "warn"),
    "dead": ("Run failed for good", "bad"),
    "cancelled": ("Run stopped", "warn"),
    "expired": ("Run ended too late", "warn"),
}


def timeline(
    way: Way, attempts: Sequence[TimelineAttempt], replays: Sequence[datetime]
) -> list[Step]:
    """The steps, oldest first; ``attempts`` by lease, ``replays`` as far as they are known."""
    steps = [Step("Submitted", way.created_at)]
    untold = way.replays - len(replays)
    if untold > 0:
        times = "once" if untold == 1 else f"{untold} times"
        steps.append(Step(f"Replayed {times}; when is no longer known", None))
    told = [
        *(failed(way, attempts, place) for place in range(len(attempts))),
        *(Step("Replayed", at, "now") for at in replays),
        *latest(way, attempts),
    ]
    if way.cancel_requested_at is not None:
        told.append(Step("Cancellation asked for", way.cancel_requested_at, "warn"))
    steps += sorted(told, key=lambda step: step.at or way.created_at)
    if way.status in ENDS:
        title, tone = ENDS[way.status]
        steps.append(Step(title, way.finished_at, tone))
    elif way.status in ("scheduled", "queued"):
        waits = "Put off until it is due" if way.status == "scheduled" else "Waits in the line"
        due = way.execute_at if way.status == "scheduled" else None
        steps.append(Step(waits, None, "now", next_at=due))
    return steps


def failed(way: Way, attempts: Sequence[TimelineAttempt], place: int) -> Step:
    """A run that gave no result, and how long it was until the next."""
    attempt = attempts[place]
    title, tone = FAILED.get(attempt.status, ("Run ended", "warn"))
    following = way.started_at if way.lease > attempt.lease else None
    if place + 1 < len(attempts):
        following = attempts[place + 1].started_at
    again = attempt.status in ("scheduled", "queued")
    return Step(
        title,
        attempt.started_at or attempt.ended_at,
        tone,
        attempt.lease,
        attempt.worker,
        attempt.ended_at,
        between(attempt.started_at, attempt.ended_at),
        attempt.error_class,
        attempt.error_message,
        between(attempt.ended_at, following) if again else None,
    )


def latest(way: Way, attempts: Sequence[TimelineAttempt]) -> list[Step]:
    """The run that is on, or that ended well; or that it is on its way to a worker."""
    if any(attempt.lease == way.lease for attempt in attempts):
        return []
    if way.status == "dispatched":
        return [
            Step("Dispatched; a worker is about to take it", way.dispatched_at, "now", way.lease)
        ]
    if way.started_at is None or way.status not in ("running", "succeeded"):
        return []
    on = way.status == "running"
    return [
        Step(
            "Runs" if on else "Run succeeded",
            way.started_at,
            "now" if on else "good",
            way.lease,
            way.worker,
            None if on else way.finished_at,
            None if on else between(way.started_at, way.finished_at),
        )
    ]


def between(start: datetime | None, end: datetime | None) -> float | None:
    """Seconds from one moment to another; None if one of them is unknown."""
    if start is None or end is None:
        return None
    return max(0.0, (end - start).total_seconds())
