"""``/console/workers``: who could run jobs, what each runs, and how its connections do.

A worker is what stops as a whole: forked processes are shown as the one worker they are. What a
worker runs is read from the jobs themselves; slots and connections are as it said with its last
heartbeat. A worker that was killed is shown as lost until its row is forgotten.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from app.api.http.state import read_state
from app.console.page import LivePage, PageRequest
from models.pools import POOLS, parse_queue
from models.presence import ALIVE

#: Jobs shown of one worker and of all, and jobs in flight that are looked at for it.
SHOWN_EACH = 20
SHOWN = 500
LOOKED_AT = 5_000

READ_PROCESSES = f"""
    SELECT coalesce(parent, name) AS worker, name, kind, pools, slots, busy, draining,
           db_size, db_in_use, db_waiters, started_at, heartbeat_at, node, drain_requested_at,
           {ALIVE} AS alive
    FROM processes ORDER BY kind, pools, 1, name
"""
#: Along ``jobs_in_flight``; what waits at the broker is in it too.
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
#: Who leads, and who stands in.
READ_LEADERS = "SELECT role, holder FROM leaders WHERE expires_at > now()"
READ_DESIRED = """
    SELECT pool, workers, reason, changed_at, updated_at > now() - interval '10 seconds' AS fresh
    FROM desired_workers
"""


@dataclass(frozen=True, slots=True)
class WorkerView:
    """A worker as the page shows it."""

    #: Of the process that stops as a whole.
    name: str
    node: str
    #: ``alive``, ``drain_requested``, ``draining`` or ``lost``.
    state: str
    queues: Sequence[str]
    slots: int
    busy: int
    db_size: int
    db_in_use: int
    db_waiters: int
    started_at: datetime
    #: Only of a lost one: of all others it would be news every two seconds.
    seen_at: datetime | None
    #: Living processes; more than one if they were forked, and none if it is lost.
    processes: int
    jobs: Sequence[Any]
    #: Jobs it runs that are not among those.
    more: int


@dataclass(frozen=True, slots=True)
class PoolView:
    """What a pool has and what the autoscaler wants."""

    name: str
    workers: int
    slots: int
    busy: int
    desired: int | None
    reason: str
    changed_at: datetime | None


def read_workers(asked: PageRequest) -> dict[str, Any]:
    """Every process of the deployment, with what it runs."""
    with read_state() as connection:
        rows = connection.exec_driver_sql(READ_PROCESSES).all()
        running = connection.exec_driver_sql(READ_RUNNING).all()
        desired = {row.pool: row for row in connection.exec_driver_sql(READ_DESIRED)}
        roles = {row.holder: row.role for row in connection.exec_driver_sql(READ_LEADERS)}
    workers = worker_views(rows, running)
    return {
        "pools": [pool_view(name, workers, desired.get(name)) for name in POOLS],
        "workers": workers,
        "alone": alone(workers),
        "others": [row for row in rows if row.kind != "worker"],
        "roles": {"scheduler": "leads", "relief": "is the relief"},
        "role_of": roles,
    }


def worker_views(rows: Iterable[Any], running: Iterable[Any]) -> list[WorkerView]:
    """The processes put together to workers: the living first, then by queue and name."""
    jobs: dict[str, list[Any]] = {}
    for job in running:
        jobs.setdefault(job.worker, []).append(job)
    workers: dict[str, list[Any]] = {}
    for row in rows:
        if row.kind == "worker":
            workers.setdefault(row.worker, []).append(row)
    views = [worker_view(name, members, jobs) for name, members in workers.items()]
    return sorted(views, key=lambda view: (view.state == "lost", view.queues, view.name))


def worker_view(name: str, members: Sequence[Any], jobs: Mapping[str, Sequence[Any]]) -> WorkerView:
    """One worker; of a forked one, what its living processes say together."""
    living = [row for row in members if row.alive]
    shown = [job for row in members for job in jobs.get(row.name, ())]
    running = sum(jobs[row.name][0].of_worker for row in members if row.name in jobs)
    newest = max(members, key=lambda row: row.heartbeat_at)
    return WorkerView(
        name=name,
        node=newest.node,
        state=state_of(living),
        queues=newest.pools,
        slots=sum(row.slots for row in living),
        busy=sum(row.busy for row in living),
        db_size=sum(row.db_size for row in living),
        db_in_use=sum(row.db_in_use for row in living),
        db_waiters=sum(row.db_waiters for row in living),
        started_at=min(row.started_at for row in members),
        seen_at=None if living else newest.heartbeat_at,
        processes=len(living),
        jobs=shown,
        more=max(0, running - len(shown)),
    )


def alone(workers: Iterable[WorkerView]) -> set[str]:
    """Workers whose jobs would have nowhere else to go."""
    serving: dict[str, list[str]] = {}
    for view in workers:
        for queue in view.queues if view.state == "alive" else ():
            serving.setdefault(queue, []).append(view.name)
    return {names[0] for names in serving.values() if len(names) == 1}


def state_of(living: Sequence[Any]) -> str:
    """One word for the worker whose living processes these are."""
    if not living:
        return "lost"
    if any(row.draining for row in living):
        return "draining"
    return "drain_requested" if any(row.drain_requested_at for row in living) else "alive"


def pool_view(name: str, workers: Iterable[WorkerView], desired: Any | None) -> PoolView:
    """A pool with its slices; who drains takes nothing new and does not count."""
    serving = [
        view
        for view in workers
        if view.state in ("alive", "drain_requested")
        and name in {parse_queue(queue)[0] for queue in view.queues}
    ]
    fresh = desired is not None and desired.fresh
    return PoolView(
        name=name,
        workers=len(serving),
        slots=sum(view.slots for view in serving),
        busy=sum(view.busy for view in serving),
        desired=desired.workers if desired is not None and fresh else None,
        reason=desired.reason if desired is not None and fresh else "",
        changed_at=desired.changed_at if desired is not None and fresh else None,
    )


WORKERS = LivePage("/console/workers", "console/workers.html", read_workers)
