"""The one judge: what clients were promised against what the tables say.

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
from typing import Any

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
    SELECT job.id::text, job.status::text, job.attempt, job.crashes, job.lease,
           application.score::float8
    FROM jobs AS job JOIN applications AS application USING (id)
    WHERE application.role = %(role)s
"""
READ_LIVE = f"""
    SELECT id::text, status::text, pool, lease, crashes, worker,
           lease_expires_at - now() AS lease_left, now() - created_at AS age
    FROM jobs WHERE status IN ({LIVE_SQL}) ORDER BY id LIMIT 20
"""
COUNT_LIVE = f"SELECT count(*) FROM jobs WHERE status IN ({LIVE_SQL})"
#: Only while nothing was removed: counts of ended jobs never fall.
MISCOUNTED = """
    WITH truth AS (
        SELECT tenant_id, pool, status::text AS status, count(*) AS jobs FROM jobs
        GROUP BY 1, 2, 3
        UNION ALL
        SELECT 0, pool, status::text, count(*) FROM jobs GROUP BY 2, 3
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
    """Judge; call it when nothing is on its way any more."""
    with connection(engine) as taken:
        jobs = {row[0]: row for row in taken.exec_driver_sql(READ_JOBS, {"role": role}).all()}
        stuck = taken.exec_driver_sql(READ_LIVE).all()
        miscounted = taken.exec_driver_sql(MISCOUNTED).all()
    with Api(port, seconds=30.0) as api:
        listed = Counter(entry["id"] for entry in api.leaderboard(role))
    report = Report(promised=len(promises))
    report.unpromised = len(jobs.keys() - {promise.id for promise in promises})
    report.crashes = sum(row.crashes for row in jobs.values())
    report.stuck = [str(tuple(row)) for row in stuck]
    report.miscounted = [str(tuple(row)) for row in miscounted]
    # Also those whose answer was lost: what is admitted is done, once.
    report.settled_twice = [f"{id} attempt {row.attempt}" for id, row in jobs.items() if row[2] > 1]
    report.twice_on_leaderboard = [id for id, times in listed.items() if times > 1]
    for promise in promises:
        _judge(report, promise, role, jobs.get(promise.id), listed[promise.id])
    return report


def _judge(report: Report, promise: Promise, role: str, job: Any, listed: int) -> None:
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
