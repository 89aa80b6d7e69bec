"""How a job may end, given what was ordered and what was done to its workers. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from loadtest.chaos.facts import Attempt, Job, World, expected_score
from loadtest.chaos.plan import Act
from loadtest.chaos.striker import Strike

#: Without the state store nobody can keep a lease. Everybody can do without the others.
SHARED = ("postgres", "postgres-backend")
#: What a hit does goes on for so long: a server starts, leases run out, somebody notices.
AFTERMATH_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Blow:
    """A stretch of time in which processes could not be relied on."""

    pids: frozenset[int]
    target: str
    act: Act
    since: float
    until: float


def until(strike: Strike) -> float:
    """When what a strike did is over."""
    return (strike.until or strike.at) + AFTERMATH_SECONDS


class Excuses:
    """What the strikes, and jobs that kill, account for."""

    def __init__(self, strikes: Iterable[Strike], killers: Iterable[Attempt] = ()) -> None:
        self._blows = [
            Blow(frozenset(one.pids), one.hit.target, one.hit.act, one.at, until(one))
            for one in strikes
            if one.pids
        ]
        self._murdered = {attempt.pid for attempt in killers}

    def for_loss(self, attempt: Attempt) -> bool:
        """Whether something happened to the worker of a lost run, or to what it leans on."""
        if self.by_neighbour(attempt):
            return True
        since = attempt.started_at or attempt.ended_at
        return any(
            (attempt.pid in blow.pids or blow.target in SHARED)
            for blow in self._during(since, attempt.ended_at)
        )

    def by_neighbour(self, attempt: Attempt) -> bool:
        """Whether a job that kills its worker ran there too."""
        return attempt.pid in self._murdered

    def for_zombie(self, pid: int, at: float) -> bool:
        """Whether a process may have slept through the loss of its lease."""
        return any(
            (pid in blow.pids and blow.act is not Act.KILL) or blow.target in SHARED
            for blow in self._during(at, at)
        )

    def _during(self, since: float, until: float) -> Iterable[Blow]:
        return (blow for blow in self._blows if blow.since <= until and blow.until >= since)


def killers_in(world: World) -> list[Attempt]:
    """Runs that killed their own worker."""
    return [
        attempt
        for job in world.jobs.values()
        if job.type == "crash"
        for attempt in world.attempts.get(job.id, ())
    ]


def lost_runs(jobs: Mapping[str, Job], attempts: Mapping[str, Sequence[Attempt]]) -> list[Attempt]:
    """Runs that ended with their worker, of jobs that do not kill it themselves."""
    return [
        attempt
        for job in jobs.values()
        if job.type != "crash"
        for attempt in attempts.get(job.id, ())
        if attempt.error_class == "WORKER_CRASH"
    ]


#: A job that took so many workers with it is dead.
CRASH_CAP = 5
#: Tries that these classes get in all.
TRIES = {"TIMEOUT": 2, "RESOURCE_VIOLATION": 2, "PERMANENT": 1, "POISON": 1}
#: The platform gave up early, for reasons of its own that it names.
EARLY = ("(quarantined)", "(retry budget spent)")
#: Failures that cost no try.
FREE = ("WORKER_CRASH", "DEPENDENCY", None)


def wrong_end(
    job: Job, attempts: Sequence[Attempt], excuses: Excuses, *, asked_to_stop: bool
) -> str | None:
    """What is wrong with the state that a job ended in; None if it could end so."""
    match job.status:
        case "cancelled" if not asked_to_stop:
            return "cancelled by nobody"
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
        tries = TRIES.get(job.payload["class"])
        # An error of the job's own would have had five tries, and none asks for that many.
        return tries is not None and (job.attempt == tries or job.attempt > 0 < job.replays)
    if job.error_class == "TIMEOUT":
        timeouts = [one for one in attempts if one.error_class == "TIMEOUT"][-2:]
        return len(timeouts) == 2 and all(excuses.for_loss(attempt) for attempt in timeouts)
    return False


def may_succeed(job: Job, attempts: Sequence[Attempt]) -> bool:
    """Whether a job that was to fail had tries enough.

    It remembers its failures before it fails: one whose worker is lost in between has failed
    without a try, and one that is brought back goes on counting.
    """
    tries = TRIES.get(job.payload["class"])
    if tries is None or job.payload["times"] < tries:
        return True
    return job.replays > 0 or any(
        one.error_class in ("WORKER_CRASH", "TIMEOUT") for one in attempts
    )


def wrong_result(job: Job, payload: Any) -> str | None:
    """What is wrong with the result of a job that succeeded, given its input.

    Those that name the process they ran in must have run where the row says: a result of
    somebody whose lease was lost looks the same otherwise.
    """
    expected: Any
    match job.type:
        case "score_application":
            expected = expected_score(payload["candidate"], payload["role"])
            return None if job.score == expected else f"score {job.score}, not {expected}"
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
            return f"nobody ordered a {job.type}"
    return None if job.result == expected else f"result {str(job.result)[:200]}"


def wrong_count(result: Any, to: int) -> str | None:
    """Each step once, in order, and no step by an earlier try than the one before."""
    steps = [tuple(step) for step in result["steps"]]
    tries = [attempt for _, attempt in steps]
    if [number for number, _ in steps] == list(range(1, to + 1)) and tries == sorted(tries):
        return None
    return f"steps {steps}"


def wrong_tries(job: Job, attempts: Sequence[Attempt]) -> str | None:
    """Tries and crashes of the row must be those on record, each run once."""
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
    return f"{spent} tries and {crashed} crashes are on record"
