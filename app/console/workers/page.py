"""``/console/workers``: worker processes, what each runs, its connections, and draining one.

Forked processes are shown as one worker, by the name that Celery gives it. A worker that was killed
is shown as lost until its row is deleted. A drain request is a mark in the worker's row: it reads
it with its next heartbeat and exits when its jobs have ended.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from flask import request
from sqlalchemy import Connection, Row
from werkzeug.wrappers import Response

from app.api.http.state import read_state, write_state
from app.console.page import PageRequest, done, live_page, route
from models.audit import Act
from models.pools import POOLS, parse_queue
from models.presence import ALIVE, parse_process, request_drain

logger = logging.getLogger(__name__)

PATH = "/console/workers"
#: Jobs shown of one worker and of all, and jobs in flight that are read for it.
SHOWN_EACH = 20
SHOWN = 500
LOOKED_AT = 5_000

#: Of a forked worker, what its living processes say together. ``seen_at`` only of a lost one: of
#: all others it would change every two seconds.
READ_WORKERS = f"""
    SELECT worker AS name, array_agg(process.name) AS members,
           (array_agg(coalesce(nullif(node, ''), worker) ORDER BY heartbeat_at DESC))[1] AS node,
           string_to_array((array_agg(array_to_string(pools, ' ') ORDER BY heartbeat_at DESC))[1],
                           ' ') AS queues,
           CASE WHEN NOT bool_or(alive) THEN 'lost'
                WHEN bool_or(alive AND draining) THEN 'draining'
                WHEN bool_or(alive AND drain_requested_at IS NOT NULL) THEN 'drain_requested'
                ELSE 'alive' END AS state,
           coalesce(sum(slots) FILTER (WHERE alive), 0)::int AS slots,
           coalesce(sum(busy) FILTER (WHERE alive), 0)::int AS busy,
           coalesce(sum(db_size) FILTER (WHERE alive), 0)::int AS db_size,
           coalesce(sum(db_in_use) FILTER (WHERE alive), 0)::int AS db_in_use,
           coalesce(sum(db_waiters) FILTER (WHERE alive), 0)::int AS db_waiters,
           count(*) FILTER (WHERE alive) AS processes, min(started_at) AS started_at,
           CASE WHEN NOT bool_or(alive) THEN max(heartbeat_at) END AS seen_at
    FROM (SELECT *, coalesce(parent, name) AS worker, {ALIVE} AS alive FROM processes
          WHERE kind = 'worker') AS process
    GROUP BY worker ORDER BY NOT bool_or(alive), queues, worker
"""
READ_OTHERS = f"""
    SELECT name, kind, db_size, db_in_use, db_waiters, started_at, heartbeat_at, {ALIVE} AS alive,
           (SELECT CASE role WHEN 'scheduler' THEN 'leader' ELSE role END FROM leaders
            WHERE holder = name AND expires_at > now() LIMIT 1) AS role
    FROM processes WHERE kind <> 'worker' ORDER BY kind, name
"""
#: Along ``jobs_in_flight``, which includes jobs waiting at the broker.
READ_RUNNING = f"""
    SELECT running.worker, running.id::text, running.type, tenant.name AS tenant,
           running.started_at, running.of_worker
    FROM (
        SELECT *, count(*) OVER (PARTITION BY worker) AS of_worker,
               row_number() OVER (PARTITION BY worker ORDER BY started_at, id) AS place
        FROM (
            SELECT id, worker, type, tenant_id, started_at, status FROM jobs
            WHERE status IN ('dispatched', 'running') LIMIT {LOOKED_AT}
        ) AS flight
        WHERE status = 'running'
    ) AS running LEFT JOIN tenants AS tenant ON tenant.id = running.tenant_id
    WHERE running.place <= {SHOWN_EACH}
    ORDER BY running.worker, running.place LIMIT {SHOWN}
"""
#: What the autoscaler wants, if it has decided lately.
READ_DESIRED = """
    SELECT pool, workers, reason, changed_at FROM desired_workers
    WHERE updated_at > now() - interval '10 seconds'
"""


def read_workers(asked: PageRequest) -> dict[str, Any]:
    """Every process of the deployment, with what it runs."""
    with read_state() as connection:
        workers = connection.exec_driver_sql(READ_WORKERS).all()
        others = connection.exec_driver_sql(READ_OTHERS).all()
        jobs = read_running(connection)
        desired = {row.pool: row for row in connection.exec_driver_sql(READ_DESIRED)}
    return {
        "pools": [(pool_totals(name, workers), desired.get(name)) for name in POOLS],
        "workers": [(worker, *jobs_of(worker, jobs)) for worker in workers],
        "alone": alone(workers),
        "others": others,
    }


def read_running(connection: Connection) -> dict[str, list[Row[Any]]]:
    jobs: dict[str, list[Row[Any]]] = {}
    for job in connection.exec_driver_sql(READ_RUNNING):
        jobs.setdefault(job.worker, []).append(job)
    return jobs


def jobs_of(worker: Row[Any], jobs: dict[str, list[Row[Any]]]) -> tuple[list[Row[Any]], int]:
    """Jobs of a worker that are shown, and how many others it runs."""
    by_process = [jobs[name] for name in worker.members if name in jobs]
    shown = [job for those in by_process for job in those]
    return shown, max(0, sum(those[0].of_worker for those in by_process) - len(shown))


def alone(workers: Iterable[Row[Any]]) -> set[str]:
    """Workers that are the only one of a queue."""
    serving: dict[str, list[str]] = {}
    for worker in workers:
        for queue in worker.queues if worker.state == "alive" else ():
            serving.setdefault(queue, []).append(worker.name)
    return {names[0] for names in serving.values() if len(names) == 1}


def pool_totals(name: str, workers: Sequence[Row[Any]]) -> dict[str, Any]:
    """A pool with its slices; draining workers take no jobs and do not count."""
    serving = [
        worker
        for worker in workers
        if worker.state in ("alive", "drain_requested")
        and name in {parse_queue(queue)[0] for queue in worker.queues}
    ]
    return {
        "name": name,
        "workers": len(serving),
        "slots": sum(worker.slots for worker in serving),
        "busy": sum(worker.busy for worker in serving),
    }


@route("POST", f"{PATH}/drain", acts=(Act.WORKER_DRAIN,))
def post_drain() -> Response:
    """Ask one worker to exit once its jobs have ended."""
    worker = request.form.get("worker", "").replace("\0", "")
    node, _ = parse_process(worker)
    with write_state() as engine:
        asked = request_drain(engine, worker)
    if not asked:
        return done(PATH, f"{node} is gone or already draining.")
    logger.warning("%s was asked to drain", node)
    return done(PATH, f"{node} was asked to drain: it finishes what it runs and exits.")


WORKERS = live_page(PATH, "console/workers.html", read_workers)
