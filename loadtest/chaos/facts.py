"""The state at the end of a chaos run: tables, leaderboard and queues, read once."""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kombu import Connection
from sqlalchemy import Engine

from app.broker_url import node_urls
from loadtest.chaos.client import Api
from loadtest.chaos.plan import ROLE, application
from models.jobs.discard import DISCARDED
from models.jobs.states import LIVE
from models.pools import POOLS
from models.store.errors import StateStoreUnavailable
from models.store.session import connect
from tasks.scorers.protocol import ApplicationText
from tasks.scorers.simulated import SimulatedScorer

LIVE_SQL = ", ".join(f"'{status}'" for status in LIVE)

READ_LIVE = f"""
    SELECT id::text, status::text, pool, lease, crashes, worker,
           lease_expires_at - now() AS lease_left, now() - created_at AS age
    FROM jobs WHERE status IN ({LIVE_SQL}) ORDER BY id LIMIT 20
"""
COUNT_LIVE = f"SELECT count(*) FROM jobs WHERE status IN ({LIVE_SQL})"
#: Only while nothing was removed: counts of ended jobs never fall. A job that was replayed
#: or discarded stays counted among the dead.
MISCOUNTED = f"""
    WITH moment AS (
        SELECT tenant_id, pool, status::text AS status, 1 AS jobs FROM jobs
        UNION ALL
        SELECT tenant_id, pool, 'dead', replays FROM jobs WHERE replays > 0
        UNION ALL
        SELECT tenant_id, pool, 'dead', 1 FROM jobs AS job WHERE {DISCARDED}
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
READ_JOBS = """
    SELECT job.id::text, type, pool, status::text, attempt, deferrals, crashes, replays, lease,
           payload, payload_blob IS NOT NULL, result, error_class, error_message, worker,
           extract(epoch FROM started_at)::float8, extract(epoch FROM finished_at)::float8,
           extract(epoch FROM not_after)::float8, application.score::float8
    FROM jobs AS job LEFT JOIN applications AS application USING (id)
"""
READ_ATTEMPTS = """
    SELECT job_id::text AS job_id, lease, worker, extract(epoch FROM started_at)::float8,
           extract(epoch FROM ended_at)::float8, status::text, error_class, error_message
    FROM attempts ORDER BY job_id, lease
"""
READ_KEYS = "SELECT key, job_ids::text[] FROM idempotency_keys"
#: Whoever ends a run charges it: the worker that settles it or hands it back, and the reaper, up to
#: its last heartbeat. Runs that ended are those that succeeded and those on record; one that was
#: handed back goes on elsewhere.
UNBILLED = """
    WITH run AS (
        SELECT id AS job_id, lease FROM jobs WHERE status = 'succeeded'
        UNION ALL
        SELECT job_id, lease FROM attempts
    ), truth AS (
        SELECT job.tenant_id, job.pool, sum(job.slot_seconds) AS slot_seconds,
               sum((SELECT count(*) FROM run WHERE run.job_id = job.id)) AS runs
        FROM jobs AS job GROUP BY 1, 2
    ), billed AS (
        SELECT tenant_id, pool, sum(slot_seconds) AS slot_seconds, sum(runs) AS runs
        FROM usage GROUP BY 1, 2
    )
    SELECT tenant_id, pool, truth.slot_seconds, billed.slot_seconds, truth.runs, billed.runs
    FROM truth FULL JOIN billed USING (tenant_id, pool)
    WHERE abs(coalesce(truth.slot_seconds, 0) - coalesce(billed.slot_seconds, 0)) > 0.001
       OR coalesce(truth.runs, 0) <> coalesce(billed.runs, 0)
"""
#: A queue with consumers is empty within this time.
QUEUE_SECONDS = 15.0


@dataclass(frozen=True, slots=True)
class Job:
    """A row of `jobs`. Times are in seconds since the epoch."""

    id: str
    type: str
    pool: str
    status: str
    attempt: int
    deferrals: int
    crashes: int
    replays: int
    lease: int
    payload: Any = None
    #: The payload lies in the blob store.
    large: bool = False
    result: Any = None
    error_class: str | None = None
    error_message: str | None = None
    worker: str | None = None
    started_at: float | None = None
    finished_at: float | None = None
    not_after: float | None = None
    score: float | None = None

    @property
    def pid(self) -> int:
        """The process that claimed it last."""
        return pid_of(self.worker)

    def __str__(self) -> str:
        counts = f"attempts {self.attempt}, crashes {self.crashes}, replays {self.replays}"
        return f"{self.id} {self.type} {self.status} ({counts}, {self.error_class})"


@dataclass(frozen=True, slots=True)
class Attempt:
    """A row of `attempts`: a run without a result."""

    job_id: str
    lease: int
    worker: str | None
    started_at: float | None
    ended_at: float
    status: str
    error_class: str | None
    error_message: str | None

    @property
    def pid(self) -> int:
        """The process that ran it."""
        return pid_of(self.worker)


@dataclass(slots=True)
class World:
    jobs: Mapping[str, Job]
    attempts: Mapping[str, Sequence[Attempt]] = field(default_factory=dict)
    #: Ids that each idempotency key stands for.
    keys: Mapping[str, Sequence[str]] = field(default_factory=dict)
    #: Ids on the leaderboard, in its order.
    listed: Sequence[str] = ()
    #: Jobs that have not ended.
    live: Sequence[str] = ()
    #: Tenant, pool, state, recount, counter.
    miscounted: Sequence[str] = ()
    #: Tenant, pool, slot-seconds and runs by the rows and by `usage`.
    unbilled: Sequence[str] = ()
    #: References left in a queue that still match their row.
    forgotten: Sequence[str] = ()


def read_world(engine: Engine, port: int, broker_url: str | None) -> World:
    """Read it when every job has ended."""
    by_job: dict[str, list[Attempt]] = defaultdict(list)
    with connect(engine) as connection:
        jobs = {row[0]: Job(*row) for row in connection.exec_driver_sql(READ_JOBS)}
        for row in connection.exec_driver_sql(READ_ATTEMPTS):
            by_job[row.job_id].append(Attempt(*row))
        keys = {row.key: row.job_ids for row in connection.exec_driver_sql(READ_KEYS)}
        live, miscounted, unbilled = (
            [str(tuple(row)) for row in connection.exec_driver_sql(sql)]
            for sql in (READ_LIVE, MISCOUNTED, UNBILLED)
        )
    with Api(port, seconds=30.0) as api:
        listed = [entry["id"] for entry in api.leaderboard(ROLE)]
    # Such a message would still make a worker run the job.
    forgotten = [
        f"{job_id} lease {lease}"
        for job_id, lease in (read_queues(broker_url) if broker_url else ())
        if (job := jobs.get(job_id)) and (job.status, job.lease) == ("dispatched", lease)
    ]
    return World(jobs, by_job, keys, listed, live, miscounted, unbilled, forgotten)


def pid_of(worker: str | None) -> int:
    """The process id in a worker's name; 0 without a worker."""
    return int((worker or ":0").rpartition(":")[2])


def read_queues(broker_url: str) -> list[tuple[str, int]]:
    """References that are still in the queues once these had time to empty; removes them."""
    left: list[tuple[str, int]] = []
    deadline = time.monotonic() + QUEUE_SECONDS
    with Connection(node_urls(broker_url), connect_timeout=5) as broker:
        channel = broker.channel()
        for pool in POOLS:
            while channel.queue_declare(pool, passive=True).message_count:
                if time.monotonic() > deadline:
                    break
                time.sleep(0.1)
            while message := channel.basic_get(pool, no_ack=True):
                # Celery's body: arguments, keywords, and what links the message to others.
                arguments, *_ = json.loads(message.body)
                left += [(job_id, lease) for job_id, lease in arguments[0]]
    return left


def wait_until_settled(engine: Engine, seconds: float) -> bool:
    """Wait until every job has ended; false if for so long no further one has."""
    fewest, deadline = None, time.monotonic() + seconds
    while fewest != 0 and time.monotonic() < deadline:
        with suppress(StateStoreUnavailable), connect(engine) as connection:
            live = connection.exec_driver_sql(COUNT_LIVE).scalar_one()
            if fewest is None or live < fewest:
                fewest, deadline = live, time.monotonic() + seconds
        time.sleep(0.1)
    return fewest == 0


def expected_score(candidate: str, role: str) -> float:
    """The score the simulation gives to what the client sent."""
    sent = application(candidate, role)
    return SimulatedScorer(seconds=0).score(ApplicationText(candidate, role, sent["payload"])).score
