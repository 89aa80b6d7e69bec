"""What the tests of plans share: a table that has grown, and a look at how it is read."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from sqlalchemy import event

from tests.support.database_fixture import DatabaseFixture
from tests.support.statement_roles import without_role

#: Most rows have ended long ago; the line is long, half of it behind one dependency; little is
#: in flight or put off.
FILL = (
    """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, priority, execute_at, lease,
                      lease_expires_at, finished_at, ended_xid, worker, dependency)
    SELECT gen_random_uuid(), 1 + n %% 50, 'score_application', part.pool, '{}',
           status, n %% 3, now() + n * interval '1 second', 1, now() + interval '1 minute',
           now() - n * interval '1 minute',
           CASE WHEN status IN ('succeeded', 'dead', 'cancelled') THEN pg_current_xact_id() END,
           'w' || n %% 9, (ARRAY['claude', 'claude', '', 'maps'])[1 + n %% 4]
    FROM (VALUES ('succeeded'::job_status, 36000, 'medium'), ('dead', 2000, 'medium'),
                 ('cancelled', 1000, 'medium'), ('queued', 10000, 'medium'),
                 ('scheduled', 700, 'medium'), ('dispatched', 100, 'medium'),
                 ('running', 200, 'medium'), ('queued', 300, 'short'))
            AS part (status, jobs, pool),
         generate_series(1, part.jobs) AS n""",
    """
    INSERT INTO applications (id, tenant_id, candidate, role, score)
    SELECT id, 1, 'Ada', 'general',
           CASE status WHEN 'succeeded' THEN round((random() * 100)::numeric, 2) END
    FROM jobs""",
    """
    INSERT INTO attempts (job_id, lease, status)
    SELECT id, 1, status FROM jobs WHERE status IN ('dead', 'cancelled')""",
    """
    INSERT INTO checkpoints (job_id, lease, state)
    SELECT id, 1, '{}' FROM jobs WHERE status IN ('succeeded', 'running')""",
    """
    INSERT INTO idempotency_keys (tenant_id, key, digest, job_ids, created_at)
    SELECT 1, id::text, '', ARRAY[id], now() - random() * interval '1 day' FROM jobs
    WHERE status = 'queued'""",
    """
    INSERT INTO tallies (kind, name, bucket, total, amount)
    SELECT kind, name::text, date_bin('10 s', now(), 'epoch') - n * interval '10 s', 9, 1
    FROM unnest(ARRAY['dependency', 'type', 'retry', 'violation', 'crash', 'hour']) AS kind,
         generate_series(1, 20) AS name, generate_series(0, 100) AS n""",
    """
    INSERT INTO events (tenant_id, kind, at)
    SELECT 0, 'x', now() - n * interval '1 minute' FROM generate_series(1, 20000) AS n""",
    "INSERT INTO circuits VALUES ('claude', 'half_open', now() - interval '1 minute')",
    "INSERT INTO verdicts (kind, tenant_id, pool) VALUES ('throttle', 7, 'medium')",
    "UPDATE leaders SET expires_at = now() + interval '1 hour'",
    "ANALYZE",
)
#: Tables that grow; whatever reads one of them from end to end gets slower every day.
GROWING = "jobs|applications|attempts|checkpoints|idempotency_keys|events|tallies"


def plan_of(database: DatabaseFixture, sql: str, **parameters: Any) -> str:
    with database.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"EXPLAIN {sql}", parameters)
        return "\n".join(row[0] for row in rows)


class Captured(Exception):
    """The plan of a statement that was about to be sent."""


def plan_of_call(
    database: DatabaseFixture, call: Callable[[], object], explain: str = "EXPLAIN"
) -> str:
    """The plan of the first statement that ``call`` sends, with its own parameters.

    Of a prepared one, the plan for whatever parameters: that is what is kept. In the role
    that sends it, which policies may bind.
    """

    def capture(_: Any, cursor: Any, sql: str, parameters: Mapping[str, Any], *__: Any) -> None:
        role, sql = sql.removesuffix(without_role(sql)), without_role(sql)
        if sql.startswith("PREPARE "):
            return
        cursor.execute("SET plan_cache_mode = force_generic_plan")
        cursor.execute(f"{role}{explain} {sql}", parameters)
        plan = "\n".join(row[0] for row in cursor.fetchall())
        cursor.execute("RESET plan_cache_mode")
        raise Captured(plan)

    event.listen(database.engine, "before_cursor_execute", capture)
    try:
        call()
    except Captured as captured:
        return str(captured)
    finally:
        event.remove(database.engine, "before_cursor_execute", capture)
    raise AssertionError("nothing was sent")


def pages_read(database: DatabaseFixture, sql: str, **parameters: Any) -> int:
    """Pages that the statement touches, tried out and taken back."""
    with database.engine.connect() as connection:
        scoped = connection.execution_options(isolation_level="READ COMMITTED")
        with scoped.begin() as trial:
            explain = f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}"
            (plan,) = scoped.exec_driver_sql(explain, parameters).scalar_one()
            trial.rollback()
    return int(plan["Plan"]["Shared Hit Blocks"] + plan["Plan"]["Shared Read Blocks"])


def indexes_in(plan: str) -> set[str]:
    return set(re.findall(r"Index (?:Only )?Scan (?:Backward )?(?:using|on) (\w+)", plan)) - {
        "leaders_pkey"
    }


def assert_walks(plan: str, *indexes: str) -> None:
    """These indexes, and no table of many rows from end to end."""
    assert indexes_in(plan) == set(indexes), plan
    assert not re.search(rf"Seq Scan on ({GROWING})\b", plan), plan


def refs(database: DatabaseFixture, status: str, count: int) -> dict[str, list[Any]]:
    rows = database.query("SELECT id FROM jobs WHERE status = %s LIMIT %s", status, count)
    return {"ids": [str(row.id) for row in rows], "leases": [1] * len(rows)}
