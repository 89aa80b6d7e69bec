"""Replay: dead → queued, with a fresh count of attempts.

Called by ``POST /dead-letters/replay``, the console and the command line. Dying before the commit
of a batch changes nothing; dying after it loses the answer, and a repetition finds nothing dead.

Only a dead row matches, so of any number of concurrent calls exactly one brings a job back.
The lease number stays and goes on rising: its earlier holders still can write nothing. The
checkpoint stays too; what was done is not done again.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import datetime
from functools import partial
from typing import Any

from sqlalchemy import Engine, Row

from models.audit import Act, record_jobs, recording
from models.jobs.ids import BELOW_ALL
from models.store.arrays import plain_array
from models.store.session import fetch
from models.tallies import TallyKind, count_rows

#: Dead letters brought back in one statement.
BATCH = 1000

#: Dead letters of one tenant, or those of the ids; and those of them that are asked for. Of all
#: tenants only by id, not along the index of the dead, which begins with the tenant: as text.
GIVEN = """(%(ids)s::uuid[] IS NULL OR id = ANY (%(ids)s::uuid[]))
          AND (status = 'dead' OR %(tenant_id)s::bigint IS NULL AND status::text = 'dead')
          AND (%(tenant_id)s::bigint IS NULL OR tenant_id = %(tenant_id)s::bigint)"""
MATCHING = """(%(type)s::text IS NULL OR type = %(type)s::text)
          AND (%(error_class)s::text IS NULL OR error_class = %(error_class)s::text)
          AND (finished_at > %(before)s::timestamptz) IS NOT TRUE"""


#: Whether the tenant may submit jobs of the row's type: its types are null where it may all.
ALLOWED = """NOT EXISTS (SELECT FROM tenants
                          WHERE tenants.id = {tenant_id} AND {type} <> ALL (tenants.types))"""


def replay_ctes(chosen: str, limit: str = "") -> str:
    """Brings the chosen rows back: ``fresh``. The feed reports it with the death that the row
    forgets."""
    return f"""chosen AS (
        SELECT id, error_class, error_message FROM jobs WHERE {chosen}
          AND {ALLOWED.format(tenant_id="jobs.tenant_id", type="jobs.type")}
        ORDER BY id {limit}
        FOR UPDATE SKIP LOCKED
    ), fresh AS (
    UPDATE jobs AS job
    SET status = 'queued', attempt = 0, deferrals = 0, crashes = 0, lost_claims = 0,
        replays = least(job.replays, 32766) + 1, ended_xid = NULL, finished_at = NULL,
        started_at = NULL, dispatched_at = NULL, worker = NULL, cancel_requested_at = NULL,
        progress = NULL, execute_at = NULL, not_after = NULL, result = NULL, error_class = NULL,
        error_message = NULL
    FROM chosen WHERE job.id = chosen.id AND job.status = 'dead'
    RETURNING job.id, job.tenant_id, job.type, chosen.error_class, chosen.error_message
    ), reported AS (
        INSERT INTO events (tenant_id, kind, job_id, detail)
        SELECT tenant_id, 'job_replayed', id, json_build_object('type', type,
            'error', json_build_object('class', error_class, 'message', error_message))
        FROM fresh
    ), counted AS ({count_rows(TallyKind.SUBMISSION, "tenant_id::text", "fresh")})"""


REPLAY = f"""WITH {
    replay_ctes(f"{GIVEN} AND {MATCHING} AND id > %(after)s::uuid", "LIMIT %(limit)s")
} SELECT id::text AS id, tenant_id FROM fresh"""

READ_DEAD = f"""
    SELECT id::text AS id, tenant_id, pool FROM jobs
    WHERE id = ANY (%(ids)s::uuid[]) AND status::text = 'dead'
      AND {ALLOWED.format(tenant_id="jobs.tenant_id", type="jobs.type")}
    ORDER BY id
"""

#: Dead letters by tenant, and the time to which they count.
COUNT_DEAD = """
    SELECT tenant.id AS tenant_id, tenant.name AS tenant, count(*) AS jobs, now() AS as_of
    FROM jobs JOIN tenants AS tenant ON tenant.id = jobs.tenant_id
    WHERE jobs.status = 'dead'
      AND (%(type)s::text IS NULL OR jobs.type = %(type)s::text)
      AND (%(tenant)s::text IS NULL OR tenant.name = %(tenant)s::text)
    GROUP BY tenant.id ORDER BY tenant.name
"""


def count_dead(engine: Engine, job_type: str | None, tenant: str | None) -> Sequence[Row[Any]]:
    """Rows of COUNT_DEAD, for an operator who is about to replay them."""
    return fetch(engine, COUNT_DEAD, {"type": job_type, "tenant": tenant})


def move_dead(
    statement: str,
    act: Act,
    engine: Engine,
    tenant_id: int | None,
    ids: Sequence[str] | None = None,
    *,
    limit: int | None = None,
    before: datetime | None = None,
    job_type: str | None = None,
    error_class: str | None = None,
    bounded: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[str]:
    """Move dead letters by id, or by what they have in common, oldest first; which.

    A job that dies again meanwhile is not moved twice: the walk has passed it. Each statement
    runs within ``bounded()``, with what is recorded of it.
    """
    wanted = {
        "tenant_id": tenant_id,
        "ids": None if ids is None else plain_array(sorted(set(ids))),
        "type": job_type,
        "error_class": error_class,
        "before": before,
    }
    most = len(ids or ()) if limit is None else limit
    moved: list[str] = []
    while len(moved) < most:
        room = min(BATCH, most - len(moved))
        after = moved[-1] if moved else BELOW_ALL
        with bounded(), recording(engine) as connection:
            asked = {**wanted, "limit": room, "after": after}
            rows = connection.exec_driver_sql(statement, asked).all()
            record_jobs(connection, act, rows)
        found = sorted(row.id for row in rows)
        moved += found
        if len(found) < room:
            break
    return moved


#: Brings dead letters back.
replay_dead = partial(move_dead, REPLAY, Act.JOB_REPLAY)


def read_dead(engine: Engine, ids: Sequence[str]) -> Sequence[Row[Any]]:
    """Those that are dead and may be replayed, with tenant and pool."""
    return fetch(engine, READ_DEAD, {"ids": plain_array(sorted(set(ids)))})
