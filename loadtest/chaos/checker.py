"""The judge of a load of applications alone, and the recount that all judges share.

Every application with a 202 must be in the tables, settled exactly once as succeeded with the
score that follows from it, and once on the leaderboard; the counters must equal a recount; and
nothing may still be on its way, whoever submitted it.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from sqlalchemy import Engine

from loadtest.chaos.api import Api
from loadtest.chaos.submitter import Promise, application
from models.errors import StateStoreUnavailable
from models.session import connection
from models.states import LIVE, JobStatus
from tasks.scorers import Application
from tasks.scorers.simulated import SimulatedScorer

LIVE_SQL = ", ".join(f"'{status}'" for status in LIVE)

READ_JOBS = """
    SELECT job.id::text, job.status::text, job.attempt, job.crashes, application.score::float8
    FROM jobs AS job JOIN applications AS application USING (id)
    WHERE application.role = %(role)s
"""
READ_LIVE = f"""
    SELECT id::text, status::text, pool, lease, crashes, worker,
           lease_expires_at - now() AS lease_left, now() - created_at AS age
    FROM jobs WHERE status IN ({LIVE_SQL}) ORDER BY id LIMIT 20
"""
COUNT_LIVE = f"SELECT count(*) FROM jobs WHERE status IN ({LIVE_SQL})"
#: Only while nothing was removed: counts of ended jobs never fall. A replayed job stays
#: counted among the dead.
MISCOUNTED = """
    WITH moment AS (
        SELECT tenant_id, pool, status::text AS status, 1 AS jobs FROM jobs
        UNION ALL
        SELECT tenant_id, pool, 'dead', replays FROM jobs WHERE replays > 0
    ), truth AS (
        SELECT coalesce(tenant_id, 0) AS tenant_id, pool, status, sum(jobs) AS jobs FROM moment
        GROUP BY GROUPING SETS ((tenant_id, pool, status), (pool, status))
    ), counted AS (
        SELECT tenant_id, pool, state.status, sum(state.jobs) AS jobs
        FROM job_counts, LATERAL (VALUES
            ('scheduled', scheduled), ('queued', queued), ('dispatched', dispatched),
            ('running', running), ('succeeded', succeeded), ('dead', dead),
            ('cancelled', cancelled), ('expired', expired)) AS state (status, jobs)
        GROUP BY 1, 2, 3
    )
    SELECT tenant_id, pool, status, coalesce(truth.jobs, 0), coalesce(counted.jobs, 0)
    FROM truth FULL JOIN counted USING (tenant_id, pool, status)
    WHERE coalesce(truth.jobs, 0) <> coalesce(counted.jobs, 0)
"""


@dataclass(frozen=True, slots=True)
class JobFacts:
    """What the tables say about one application."""

    id: str
    status: str
    attempt: int
    crashes: int
    score: float | None


@dataclass(slots=True)
class Report:
    """What the judge found; every list is empty if all is well."""

    promised: int
    #: In the tables without a promise: the answer was lost on its way.
    unpromised: int = 0
    #: Runs that a lost worker or a lost answer cost; no fault, a figure.
    crashes: int = 0
    #: 202, but no row.
    lost: list[str] = field(default_factory=list)
    #: 202, but not ended.
    unfinished: list[str] = field(default_factory=list)
    #: Ended, but not as scored.
    wrong_end: list[str] = field(default_factory=list)
    #: Settled more than once, or a try spent for somebody else's death.
    settled_twice: list[str] = field(default_factory=list)
    #: A score that does not follow from the application.
    wrong_score: list[str] = field(default_factory=list)
    missing_on_leaderboard: list[str] = field(default_factory=list)
    twice_on_leaderboard: list[str] = field(default_factory=list)
    #: Tenant, pool, state, recount, counter.
    miscounted: list[str] = field(default_factory=list)
    #: Anybody's job that is still on its way.
    stuck: list[str] = field(default_factory=list)

    @property
    def faults(self) -> dict[str, list[str]]:
        """The lists, by name."""
        names = (
            *("lost", "unfinished", "wrong_end", "settled_twice", "wrong_score"),
            *("missing_on_leaderboard", "twice_on_leaderboard", "miscounted", "stuck"),
        )
        return {name: getattr(self, name) for name in names}

    @property
    def ok(self) -> bool:
        """Whether every promise was kept."""
        return not any(self.faults.values())

    def __str__(self) -> str:
        lines = [f"{self.promised} promised, {self.unpromised} admitted without an answer"]
        for name, found in self.faults.items():
            if found:
                lines.append(f"{name}: {len(found)}, such as {'; '.join(found[:5])}")
        return "\n".join(lines)


def wait_until_settled(engine: Engine, seconds: float) -> bool:
    """Wait until nothing is on its way any more; false if something still is."""
    deadline = time.monotonic() + seconds
    while True:
        with suppress(StateStoreUnavailable), connection(engine) as taken:
            if not taken.exec_driver_sql(COUNT_LIVE).scalar():
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)


def check(promises: Sequence[Promise], role: str, engine: Engine, port: int) -> Report:
    """Read and judge; call it when nothing is on its way any more."""
    with connection(engine) as taken:
        jobs = taken.exec_driver_sql(READ_JOBS, {"role": role}).all()
        stuck = taken.exec_driver_sql(READ_LIVE).all()
        miscounted = taken.exec_driver_sql(MISCOUNTED).all()
    with Api(port, seconds=30.0) as api:
        listed = [entry["id"] for entry in api.leaderboard(role)]
    report = judge(promises, role, [JobFacts(*row) for row in jobs], listed)
    report.stuck = [str(tuple(row)) for row in stuck]
    report.miscounted = [str(tuple(row)) for row in miscounted]
    return report


def judge(
    promises: Sequence[Promise], role: str, jobs: Sequence[JobFacts], listed: Sequence[str]
) -> Report:
    """Compare the promises with the rows and with the ids on the leaderboard."""
    rows = {job.id: job for job in jobs}
    times = Counter(listed)
    report = Report(promised=len(promises))
    report.unpromised = len(rows.keys() - {promise.id for promise in promises})
    report.crashes = sum(job.crashes for job in jobs)
    # Also those whose answer was lost: what is admitted is done, once.
    report.settled_twice = [f"{job.id} attempt {job.attempt}" for job in jobs if job.attempt > 1]
    report.twice_on_leaderboard = [one for one, count in times.items() if count > 1]
    for promise in promises:
        _judge(report, promise, role, rows.get(promise.id), times[promise.id])
    return report


def _judge(report: Report, promise: Promise, role: str, job: JobFacts | None, listed: int) -> None:
    if job is None:
        report.lost.append(promise.id)
        return
    if not JobStatus(job.status).terminal:
        report.unfinished.append(f"{promise.id} {job.status}")
        return
    if job.status != "succeeded":
        report.wrong_end.append(f"{promise.id} {job.status}")
    if job.score != expected_score(promise.candidate, role):
        report.wrong_score.append(f"{promise.id} {job.score}")
    if not listed:
        report.missing_on_leaderboard.append(promise.id)


def expected_score(candidate: str, role: str) -> float:
    """The score the simulation gives to what the client sent."""
    sent = application(candidate, role)
    return SimulatedScorer(seconds=0).score(Application(candidate, role, sent["payload"])).score
