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
from typing import Any

from sqlalchemy import Engine, Row

from models.jobs.cancel import Done
from models.jobs.ids import BELOW_ALL
from models.store.arrays import plain_array
from models.store.session import fetch
from models.tallies import TallyKind, count_rows

#: Dead letters brought back in one statement.
BATCH = 1000


def fresh_of(chosen: str, limit: str = "") -> str:
    """Brings the chosen rows back: ``fresh``. The feed reports it with the death that the row
    forgets."""
    return f"""chosen AS (
        SELECT id, error_class, error_message FROM jobs WHERE {chosen}
        ORDER BY id {limit}
        FOR UPDATE SKIP LOCKED
    ), fresh AS (
    UPDATE jobs AS job
    SET status = 'queued', attempt = 0, deferrals = 0, crashes = 0,
        replays = job.replays + 1, ended_xid = NULL, finished_at = NULL, started_at = NULL,
        dispatched_at = NULL, worker = NULL, cancel_requested_at = NULL, progress = NULL,
        execute_at = NULL, not_after = NULL, result = NULL, error_class = NULL,
        error_message = NULL
    FROM chosen WHERE job.id = chosen.id AND job.status = 'dead'
    RETURNING job.id, job.tenant_id, job.type, chosen.error_class, chosen.error_message
    ), reported AS (
        INSERT INTO events (tenant_id, kind, job_id, detail)
        SELECT tenant_id, 'job_replayed', id, json_build_object('type', type,
            'error', json_build_object('class', error_class, 'message', error_message))
        FROM fresh
    ), counted AS ({count_rows(TallyKind.SUBMISSION, "tenant_id::text", "fresh")})"""


def replay_statement(chosen: str, limit: str = "") -> str:
    """Brings the chosen rows back, and says which."""
    return f"WITH {fresh_of(chosen, limit)} SELECT id::text AS id FROM fresh"


REPLAY_IDS = replay_statement(
    "id = ANY (%(ids)s::uuid[]) AND tenant_id = %(tenant)s AND status = 'dead'"
)
REPLAY_MATCHING = replay_statement(
    """tenant_id = %(tenant)s AND status = 'dead'
          AND (%(type)s::text IS NULL OR type = %(type)s::text)
          AND (%(error_class)s::text IS NULL OR error_class = %(error_class)s::text)
          AND finished_at <= coalesce(%(before)s::timestamptz, now()) AND id > %(after)s::uuid""",
    "LIMIT %(limit)s",
)
REPLAY_SEVERAL = replay_statement("id = ANY (%(ids)s::uuid[]) AND status::text = 'dead'")

READ_DEAD = """
    SELECT id::text AS id, tenant_id, pool FROM jobs
    WHERE id = ANY (%(ids)s::uuid[]) AND status::text = 'dead' ORDER BY id
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


def replay_ids(engine: Engine, tenant_id: int, ids: Sequence[str]) -> list[str]:
    """Bring back those of ``ids`` that are dead letters of the tenant; which."""
    rows = fetch(engine, REPLAY_IDS, {"tenant": tenant_id, "ids": list(ids)})
    return [row.id for row in rows]


def replay_matching(
    engine: Engine,
    tenant_id: int,
    *,
    limit: int,
    before: datetime | None = None,
    job_type: str | None = None,
    error_class: str | None = None,
    bounded: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> list[str]:
    """Bring back dead letters by what they have in common, oldest first; which.

    A job that dies again meanwhile is not brought back twice: the walk has passed it. Each
    statement runs within ``bounded()``.
    """
    wanted = {"tenant": tenant_id, "type": job_type, "error_class": error_class, "before": before}
    replayed: list[str] = []
    while len(replayed) < limit:
        room = min(BATCH, limit - len(replayed))
        after = replayed[-1] if replayed else BELOW_ALL
        with bounded():
            rows = fetch(engine, REPLAY_MATCHING, {**wanted, "limit": room, "after": after})
        brought = sorted(row.id for row in rows)
        replayed += brought
        if len(brought) < room:
            break
    return replayed


def read_dead(engine: Engine, ids: Sequence[str]) -> Sequence[Row[Any]]:
    """Those that are dead, with tenant and pool."""
    return fetch(engine, READ_DEAD, {"ids": plain_array(sorted(set(ids)))})


def replay_several(engine: Engine, ids: Sequence[str]) -> Done:
    """Bring back those that are dead."""
    wanted = set(ids)
    rows = fetch(engine, REPLAY_SEVERAL, {"ids": plain_array(sorted(wanted))})
    return Done(changed=len(rows), skipped=len(wanted) - len(rows))
