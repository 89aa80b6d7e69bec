"""Statements that move jobs between cells use indexes, however many jobs other tenants have."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Connection, event

from models.cells.moved_rows import JOB_TABLES, MOVED, any_row, take_rows
from models.jobs.hand_over import IntakeRequest, hand_over, handed_over
from models.jobs.ids import new_id
from models.jobs.submission import IdempotencyKey, Submission
from models.jobs.transfer import count_left, put_jobs, take_jobs
from models.pools import POOLS
from models.settings import DatabaseSettings
from models.store.session import open_engine
from tests.support.database_fixture import DatabaseFixture
from tests.support.statement_roles import without_role

#: The tenant that moves; 50 others have 100,000 jobs.
MOVES = 51
FILL = (
    """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, attempt, finished_at, ended_xid)
    SELECT gen_random_uuid(), CASE WHEN n > 100000 THEN 51 ELSE 1 + n %% 50 END, 'echo', 'medium',
           '{}', part.status, 1,
           CASE WHEN part.ended THEN now() - n * interval '1 second' END,
           CASE WHEN part.ended THEN pg_current_xact_id() END
    FROM generate_series(1, 103000) AS n,
         LATERAL (SELECT n %% 4 > 0 AS ended,
                         (ARRAY['queued', 'dead', 'succeeded', 'succeeded'])[1 + n %% 4]::job_status
                             AS status) AS part""",
    """
    INSERT INTO applications (id, tenant_id, candidate, role)
    SELECT id, tenant_id, 'Ada', 'general' FROM jobs""",
    """
    INSERT INTO attempts (job_id, lease, status)
    SELECT id, 1, status FROM jobs WHERE status <> 'queued'""",
    """
    INSERT INTO checkpoints (job_id, lease, state)
    SELECT id, 1, '{}' FROM jobs WHERE status = 'queued'""",
    """
    INSERT INTO events (tenant_id, kind, at)
    SELECT 1 + n %% 51, 'x', now() - n * interval '1 second'
    FROM generate_series(1, 100000) AS n""",
    """
    INSERT INTO idempotency_keys (tenant_id, key, digest, job_ids)
    SELECT tenant_id, id::text, '', ARRAY[id] FROM jobs WHERE status = 'queued'""",
    "ANALYZE",
)
FROM_END_TO_END = re.compile(
    r"Seq Scan on (jobs|applications|attempts|checkpoints|events|idempotency_keys)\b"
)


@pytest.fixture(scope="module")
def filled(api_database: DatabaseFixture) -> DatabaseFixture:
    url = api_database.engine.url.render_as_string(hide_password=False)
    patient = open_engine(DatabaseSettings(database_url=url, db_statement_seconds=120.0))
    with patient.connect() as connection:
        for sql in FILL:
            connection.exec_driver_sql(sql, {})
    patient.dispose()
    return api_database


@contextmanager
def plans_of(database: DatabaseFixture) -> Iterator[dict[str, str]]:
    """The plans of all statements that are sent meanwhile; none reads a table from end to end."""
    plans: dict[str, str] = {}

    def explain(_: Any, cursor: Any, sql: str, parameters: Mapping[str, Any], *__: Any) -> None:
        sent = without_role(sql).strip()
        if sent.startswith(("SELECT", "WITH", "INSERT", "UPDATE", "DELETE")):
            cursor.execute(f"EXPLAIN {sent}", parameters)
            plans[sent] = "\n".join(row[0] for row in cursor.fetchall())

    event.listen(database.engine, "before_cursor_execute", explain)
    try:
        yield plans
    finally:
        event.remove(database.engine, "before_cursor_execute", explain)
    assert plans, "nothing was sent"
    for sent, plan in plans.items():
        assert not FROM_END_TO_END.search(plan), f"{sent}\n{plan}"


@contextmanager
def taken_back(database: DatabaseFixture) -> Iterator[Connection]:
    """A transaction of which nothing is left."""
    with database.engine.connect() as connection:
        scoped = connection.execution_options(isolation_level="READ COMMITTED")
        with scoped.begin() as trial:
            yield scoped
            trial.rollback()


def tables_in(plans: Mapping[str, str]) -> set[str]:
    """Tables that rows were deleted from."""
    return set(re.findall(r"Delete on (\w+)", "\n".join(plans.values())))


def test_jobs_are_taken_and_put_by_their_indexes(filled: DatabaseFixture) -> None:
    with taken_back(filled) as connection, plans_of(filled) as plans:
        waiting = take_jobs(connection, MOVES, list(POOLS), JOB_TABLES)
        rest = take_jobs(connection, MOVES, ["none"], JOB_TABLES)
        more = take_jobs(connection, MOVES, ["none"], JOB_TABLES, rest.last)
        for rows in (waiting, rest, more):
            assert len(rows.jobs) == 500
            put_jobs(connection, rows, JOB_TABLES)
        put_jobs(connection, rest, JOB_TABLES)  # they are there already
        assert count_left(connection, MOVES).jobs == 500
    assert tables_in(plans) >= {"jobs", "applications", "attempts", "run_logs", "checkpoints"}
    chosen = [plan for sent, plan in plans.items() if "FOR UPDATE OF job" in sent]
    assert len(chosen) == 2


@pytest.mark.parametrize("tenant_id", [MOVES, 7, 99])
def test_what_is_left_is_found_by_its_indexes(filled: DatabaseFixture, tenant_id: int) -> None:
    """Of a small tenant, of another one, and of one without a row."""
    with taken_back(filled) as connection, plans_of(filled):
        count_left(connection, tenant_id)
        any_row(connection, tenant_id)
        for moved in MOVED:
            take_rows(connection, moved, tenant_id)


def request(key: str, digest: bytes = b"", **fields: Any) -> IntakeRequest:
    items = tuple(Submission(new_id(), MOVES, "echo", "medium", "{}") for _ in range(3))
    return IntakeRequest(
        "acme",
        "cell-1",
        items,
        IdempotencyKey(key, digest, 0),
        cancelled=frozenset({items[0].id}),
        created_at=datetime.now(UTC),
        **fields,
    )


def test_requests_are_handed_over_by_indexes(filled: DatabaseFixture) -> None:
    used = request("used before", b"first")
    hand_over(filled.engine, "cell-2", [used])
    batch = [
        *(request(f"key {number}") for number in range(100)),
        request("used before", b"first"),  # is answered by the first one's
        request("used before", b"other"),  # and this one is dead
    ]
    with plans_of(filled) as plans:
        done = hand_over(filled.engine, "cell-2", batch)
        again = hand_over(filled.engine, "cell-2", batch)
        assert handed_over(filled.engine, "cell-2", [batch[0].id]) == {batch[0].id}
    assert [one.fresh for one in done] == [True] * 100 + [False] * 2
    assert done[100].first_ids and not any(one.fresh for one in again)
    updated = set(re.findall(r"(?:Update|Insert) on (\w+)", "\n".join(plans.values())))
    assert updated >= {"jobs", "transfer_marks", "idempotency_keys"}
