"""PURE: which losses the hits explain, so that a loss without a cause stands out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from loadtest.chaos.facts import Attempt, Job, World
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


class Excuses:
    """What the strikes, and jobs that kill, account for."""

    def __init__(self, strikes: Iterable[Strike], killers: Iterable[Attempt] = ()) -> None:
        self._blows = [
            Blow(
                frozenset(strike.pids),
                strike.hit.target,
                strike.hit.act,
                strike.at,
                (strike.until or strike.at) + AFTERMATH_SECONDS,
            )
            for strike in strikes
            if strike.pids
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
