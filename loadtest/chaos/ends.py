"""How a job may end, given what was ordered and what was done to its workers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from loadtest.chaos.facts import Attempt, Job, expected_score

#: How long a hit has effects: a server starts, leases expire, the loss is noticed.
AFTERMATH_SECONDS = 15.0


class FaultRecord(Protocol):
    """Something that was done to a stack. Times are in seconds since the epoch."""

    @property
    def at(self) -> float: ...

    @property
    def until(self) -> float | None:
        """When a frozen process was resumed, or a fault ended."""

    def may_lose(self, worker: str) -> bool:
        """Whether a process may have lost its runs to it; its name ends with ``@host:…:pid``."""

    def may_delay(self, worker: str) -> bool:
        """Whether a process may have lost its leases and gone on."""


class Excuses:
    """Losses that hits, and jobs that kill their worker, account for."""

    def __init__(self, hits: Iterable[FaultRecord], killers: Iterable[Attempt] = ()) -> None:
        self._hits = list(hits)
        self._killed_by_jobs = {attempt.worker for attempt in killers}

    def for_loss(self, attempt: Attempt) -> bool:
        """Whether something happened to the worker of a lost run, or to what it depends on."""
        since = attempt.started_at or attempt.ended_at
        return self.by_neighbour(attempt) or any(
            one.may_lose(attempt.worker or "") for one in self._during(since, attempt.ended_at)
        )

    def by_neighbour(self, attempt: Attempt) -> bool:
        """Whether a job that kills its worker ran there too."""
        return attempt.worker in self._killed_by_jobs

    def for_zombie(self, worker: str, at: float) -> bool:
        """Whether a process may have been frozen while it lost its lease."""
        return any(one.may_delay(worker) for one in self._during(at, at))

    def _during(self, since: float, until: float) -> Iterable[FaultRecord]:
        for one in self._hits:
            if one.at <= until and (one.until or one.at) + AFTERMATH_SECONDS >= since:
                yield one


#: A job that has lost so many workers is dead.
CRASH_CAP = 5
#: Attempts that these classes get in all.
ATTEMPTS = {"TIMEOUT": 2, "RESOURCE_VIOLATION": 2, "PERMANENT": 1, "POISON": 1}
#: The platform gave up early, for these reasons.
EARLY = ("(quarantined)", "(retry budget spent)")
#: Failures that are no attempts.
FREE = ("WORKER_CRASH", "DEPENDENCY", None)


def wrong_end(
    job: Job, attempts: Sequence[Attempt], excuses: Excuses, *, asked_to_stop: bool
) -> str | None:
    """What is wrong with the state that a job ended in; None if it could end so."""
    match job.status:
        case "cancelled" if not asked_to_stop:
            return "cancelled without a request"
        case "expired" if job.not_after is None or (job.finished_at or 0) < job.not_after:
            return f"expired before {job.not_after}"
        case "dead" if not may_be_dead(job, attempts, excuses):
            return f"dead without a reason: {job.error_message}"
        case "succeeded" if job.type == "crash":
            return "succeeded although it kills its worker"
        case "succeeded" if job.type == "fail" and not may_succeed(job, attempts):
            return "succeeded although it was to fail more often than it may"
    return None


def may_be_dead(job: Job, attempts: Sequence[Attempt], excuses: Excuses) -> bool:
    """Whether the job was to die, or died of what was done to its workers."""
    if (job.error_message or "").endswith(EARLY):
        return job.type == "fail"
    if job.error_class == "WORKER_CRASH":
        lost = [one for one in attempts if one.error_class == "WORKER_CRASH"][-CRASH_CAP:]
        if job.crashes < CRASH_CAP or len(lost) < CRASH_CAP:
            return False
        if job.type == "crash":
            return True
        # Neighbours of a job that kills must not die of it.
        shared = sum(excuses.by_neighbour(attempt) for attempt in lost)
        return shared <= CRASH_CAP // 2 and all(excuses.for_loss(attempt) for attempt in lost)
    if job.type == "fail" and job.error_class == job.payload["class"]:
        most = ATTEMPTS.get(job.payload["class"])
        # An error of the job's own would have had five attempts, and none asks for that many.
        return most is not None and (job.attempt == most or job.attempt > 0 < job.replays)
    if job.error_class == "TIMEOUT":
        timeouts = [one for one in attempts if one.error_class == "TIMEOUT"][-2:]
        return len(timeouts) == 2 and all(excuses.for_loss(attempt) for attempt in timeouts)
    return False


def may_succeed(job: Job, attempts: Sequence[Attempt]) -> bool:
    """Whether a job that was to fail had attempts enough.

    It saves its count of failures before it fails: if its worker is lost in between, it has
    failed without an attempt, and a replayed one goes on counting.
    """
    most = ATTEMPTS.get(job.payload["class"])
    if most is None or job.payload["times"] < most:
        return True
    lost = ("WORKER_CRASH", "TIMEOUT")
    return job.replays > 0 or any(one.error_class in lost for one in attempts)


def wrong_result(job: Job, payload: Any) -> str | None:
    """What is wrong with the result of a job that succeeded, given its input.

    Results that name their process must be of the worker in the row: one of a worker that had
    lost its lease looks the same otherwise.
    """
    found: Any = job.result
    expected: Any
    match job.type:
        case "score_application":
            found, expected = job.score, expected_score(payload["candidate"], payload["role"])
        case "echo":
            expected = payload
        case "sleep":
            expected = {"slept": payload["seconds"]}
        case "fail":
            expected = {"failed": payload["times"]}
        case "chaos.mark":
            expected = {"tag": payload["tag"], "pid": job.pid}
        case "chaos.steps":
            expected = {"tag": payload["tag"], "steps": payload["to"], "pid": job.pid}
        case "count":
            return wrong_count(job.result, payload["to"])
        case _:
            return f"no client submitted a {job.type}"
    return None if found == expected else f"{str(found)[:200]}, not {str(expected)[:200]}"


def wrong_count(result: Any, to: int) -> str | None:
    """Each step once, in order, and no step by an earlier attempt than the one before."""
    steps = [tuple(step) for step in result["steps"]]
    attempts = [attempt for _, attempt in steps]
    if [number for number, _ in steps] == list(range(1, to + 1)) and attempts == sorted(attempts):
        return None
    return f"steps {steps}"


def wrong_attempts(job: Job, attempts: Sequence[Attempt]) -> str | None:
    """Attempts and crashes of the row must be those on record, each run once."""
    if any(attempt.lease > job.lease for attempt in attempts):
        return "a run on record has a lease that was never given"
    if job.status == "succeeded" and any(attempt.lease == job.lease for attempt in attempts):
        return f"lease {job.lease} both failed and succeeded"
    if job.replays or job.status == "cancelled":
        return None  # counts begin anew, or end in the middle
    failed = sum(attempt.error_class not in FREE for attempt in attempts)
    crashed = sum(attempt.error_class == "WORKER_CRASH" for attempt in attempts)
    spent = failed + (job.status == "succeeded")
    if (job.attempt, job.crashes) == (spent, crashed):
        return None
    return f"{spent} attempts and {crashed} crashes are on record"
