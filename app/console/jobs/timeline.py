"""A job from its submission to its end, as steps in order. Pure.

The row of the job has the current or last run, its attempts are the runs without a result, and
events say when it was replayed. A run that was handed back is known by what it logged. Events are
deleted before the job is; then replays are counted.
"""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from types import MappingProxyType
from typing import Any

from models.jobs.states import FailureClass


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
    #: Until the next run started, or will.
    waited_seconds: float | None = None
    next_at: datetime | None = None


ENDS = {
    "succeeded": ("Succeeded", "good"),
    "dead": ("Dead: no further attempts", "bad"),
    "cancelled": ("Cancelled", "warn"),
    "expired": ("Expired: not started before its deadline", "warn"),
}
LOST = {
    "scheduled": ("Worker lost; will be retried", "warn"),
    "queued": ("Worker lost; queued again", "warn"),
    "dead": ("Worker lost, too often", "bad"),
    "cancelled": ("Worker lost; cancelled", "warn"),
}
FAILED = {
    "scheduled": ("Run failed; will be retried", "warn"),
    "queued": ("Run ended; queued again", "warn"),
    "dead": ("Run failed for good", "bad"),
    "cancelled": ("Run cancelled", "warn"),
    "expired": ("Run ended after the deadline", "warn"),
}


def timeline(
    job: Any,
    attempts: Sequence[Any],
    replays: Sequence[datetime],
    logs: Mapping[int, Any] = MappingProxyType({}),
) -> list[Step]:
    """The steps, oldest first; ``attempts`` in order, ``replays`` as far as they are known, and
    ``logs`` by lease."""
    steps = [Step("Submitted", job.created_at)]
    unknown = job.replays - len(replays)
    if unknown > 0:
        times = "once" if unknown == 1 else f"{unknown} times"
        steps.append(Step(f"Replayed {times}, at an unknown time", None))
    known = [
        *(failed(job, attempts, place) for place in range(len(attempts))),
        *(Step("Replayed", at, "now") for at in replays),
        *latest(job, attempts),
    ]
    known += handed_back(logs, {step.lease for step in known})
    if job.cancel_requested_at is not None and not is_discarded(job):
        known.append(Step("Cancellation requested", job.cancel_requested_at, "warn"))
    steps += sorted(known, key=lambda step: step.at or job.created_at)
    if is_discarded(job):
        steps.append(Step(ENDS["dead"][0], job.finished_at, ENDS["dead"][1]))
        steps.append(Step("Discarded", job.cancel_requested_at, "warn"))
    elif job.status in ENDS:
        title, tone = ENDS[job.status]
        steps.append(Step(title, job.finished_at, tone))
    elif job.status == "scheduled":
        steps.append(Step("Scheduled", None, "now", next_at=job.execute_at))
    elif job.status == "queued":
        steps.append(Step("Queued", None, "now"))
    return steps


def is_discarded(job: Any) -> bool:
    """Whether it was a dead letter that somebody discarded: see `models.jobs.discard`."""
    asked, ended = job.cancel_requested_at, job.finished_at
    return job.status == "cancelled" and None not in (asked, ended) and bool(asked > ended)


def handed_back(logs: Mapping[int, Any], known: Container[int | None]) -> list[Step]:
    """Runs that their worker handed back when it stopped: only what they logged is on record."""
    return [
        Step("Run handed back; queued again", log.written_at, "warn", lease)
        for lease, log in logs.items()
        if lease not in known
    ]


def failed(job: Any, attempts: Sequence[Any], place: int) -> Step:
    """A run without a result, and how long it was until the next."""
    attempt = attempts[place]
    titles = LOST if attempt.error_class == FailureClass.WORKER_CRASH else FAILED
    title, tone = titles.get(attempt.status, ("Run ended", "warn"))
    following = job.started_at if job.lease > attempt.lease else None
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


def latest(job: Any, attempts: Sequence[Any]) -> list[Step]:
    """The current run, or the one that succeeded, or that the job was dispatched."""
    if any(attempt.lease == job.lease for attempt in attempts):
        return []
    if job.status == "dispatched":
        return [Step("Dispatched; waiting for a worker", job.dispatched_at, "now", job.lease)]
    if job.started_at is None or job.status not in ("running", "succeeded"):
        return []
    run = (job.lease, job.worker)
    if job.status == "running":
        return [Step("Running", job.started_at, "now", *run)]
    took = between(job.started_at, job.finished_at)
    return [Step("Run succeeded", job.started_at, "good", *run, job.finished_at, took)]


def between(start: datetime | None, end: datetime | None) -> float | None:
    """Seconds from one time to another; None if one of them is unknown."""
    if start is None or end is None:
        return None
    return max(0.0, (end - start).total_seconds())
