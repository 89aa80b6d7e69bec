"""Lists of jobs walk an index, however long the table is."""

from __future__ import annotations

import re
from dataclasses import replace
from datetime import UTC, datetime
from functools import partial
from typing import Any

import pytest
from sqlalchemy import Select

from app.console.jobs.dead_letters import READ_GROUPS
from app.console.jobs.job import READ_ATTEMPTS, READ_JOB, READ_REPLAYS
from app.console.jobs.page import READ_ROWS
from app.reads.job_counts import count_dead
from app.reads.search import (
    SOURCES,
    PayloadField,
    Wanted,
    few_statement,
    values_of,
    walk_statement,
)
from models.jobs.cancel import CANCEL_SEVERAL, READ_LEFT
from models.jobs.discard import discard_dead
from models.jobs.ids import ABOVE_ALL, BELOW_ALL, new_id
from models.jobs.replay import replay_dead
from models.jobs.run_logs import READ as READ_LOGS
from tests.support.database_fixture import DatabaseFixture
from tests.support.plans import assert_walks, plan_of, plan_of_call

#: One in a hundred is dead, few are live; half of all jobs are one tenant's.
FILL = (
    """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, lease, execute_at)
    SELECT gen_random_uuid(), CASE WHEN n %% 2 = 0 THEN 1 ELSE 2 + n %% 50 END, 'echo',
           'short', '{}',
           CASE n %% 100 WHEN 1 THEN 'dead'::job_status WHEN 2 THEN 'queued'
                WHEN 3 THEN 'scheduled' WHEN 4 THEN 'running' ELSE 'succeeded' END, 1, now()
    FROM generate_series(1, 20000) AS n""",
    "INSERT INTO attempts (job_id, lease, status) SELECT id, 1, 'dead' FROM jobs LIMIT 5000",
    """
    INSERT INTO applications (id, tenant_id, candidate, role)
    SELECT id, 1, '', '' FROM jobs LIMIT 5000""",
    "INSERT INTO checkpoints (job_id, lease) SELECT id, 1 FROM jobs LIMIT 5000",
    "INSERT INTO run_logs (job_id, place, lease) SELECT id, 1, 1 FROM jobs LIMIT 5000",
    """
    INSERT INTO events (tenant_id, kind, job_id)
    SELECT n %% 50, 'job_replayed', gen_random_uuid() FROM generate_series(1, 8000) AS n""",
    "ANALYZE",
)
ANY: dict[str, Any] = {
    "bottom": BELOW_ALL,
    "top": ABOVE_ALL,
    "step": 1_000,
    "limit": 51,
}
NARROW: dict[str, Any] = {"type": "echo", "text": "boom", "statuses": ("dead", "queued")}
OF_PAYLOAD = {"payload": PayloadField(("address", "city"), "Rome")}


def plan_of_select(database: DatabaseFixture, statement: Select[Any], **given: Any) -> str:
    with database.engine.connect() as connection:
        return plan_of_call(database, lambda: connection.execute(statement, ANY | given))


@pytest.fixture(scope="module")
def filled(api_database: DatabaseFixture) -> DatabaseFixture:
    for sql in FILL:
        api_database.execute(sql)
    return api_database


@pytest.mark.parametrize("newer", [False, True])
@pytest.mark.parametrize(
    ("wanted", "index"),
    [
        (Wanted(), "jobs_pkey"),
        (Wanted(since=datetime.now(UTC)), "jobs_pkey"),
        (Wanted(tenant_id=1), "jobs_of_tenant"),
        (Wanted(tenant_id=7), "jobs_of_tenant"),
        (Wanted(tenant_id=7, statuses=("dead",)), "jobs_dead"),
    ],
)
def test_a_walk_is_along_the_ids(
    filled: DatabaseFixture, wanted: Wanted, index: str, newer: bool
) -> None:
    narrowed = replace(wanted, **NARROW | ({"statuses": ("dead",)} if wanted.statuses else {}))
    for asked in (wanted, narrowed, replace(narrowed, **OF_PAYLOAD)):
        statement = walk_statement(asked.shape, newer)
        plan = plan_of_select(filled, statement, **values_of(asked, None, None))
        assert_walks(plan, index)
        assert not re.search(r"Sort.*\n.*Index Scan", plan), plan


@pytest.mark.parametrize("source", SOURCES)
def test_a_state_of_few_is_read_from_its_own_index(
    filled: DatabaseFixture, source: tuple[str, ...]
) -> None:
    index = {"queued": "jobs_line", "scheduled": "jobs_due", "dispatched": "jobs_in_flight"}
    statement = few_statement((source,), Wanted(**NARROW).shape)
    plan = plan_of_select(filled, statement, **NARROW)
    assert_walks(plan, index.get(source[0], "jobs_dead"))


@pytest.mark.parametrize("statement", [READ_ROWS, CANCEL_SEVERAL, READ_LEFT])
def test_jobs_that_are_named_are_found_by_key(filled: DatabaseFixture, statement: str) -> None:
    plan = plan_of(filled, statement, ids="{" + ",".join(new_id() for _ in range(500)) + "}")
    assert_walks(plan, "jobs_pkey")


@pytest.mark.parametrize("move", [replay_dead, discard_dead])
def test_dead_letters_that_are_named_are_found_by_key(filled: DatabaseFixture, move: Any) -> None:
    ids = [new_id() for _ in range(500)]
    plan = plan_of_call(filled, partial(move, filled.engine, None, ids))
    assert_walks(plan, "jobs_pkey")


def test_dead_letters_are_counted_along_their_index(filled: DatabaseFixture) -> None:
    for tenant in (None, 7):
        with filled.engine.connect() as connection:
            plan = plan_of_call(filled, partial(count_dead, connection, 10_001, tenant))
        assert_walks(plan, "jobs_dead")
        plan = plan_of(filled, READ_GROUPS, tenant=tenant, most=100_001)
        assert_walks(plan, "jobs_dead", "jobs_pkey")


def test_a_jobs_page_is_a_few_steps_along_keys(filled: DatabaseFixture) -> None:
    job_id = new_id()
    plan = plan_of(filled, READ_JOB, id=job_id)
    assert not re.search(r"Seq Scan on (jobs|applications|checkpoints)", plan), plan
    assert_walks(plan_of(filled, READ_ATTEMPTS, id=job_id), "attempts_pkey")
    assert_walks(plan_of(filled, READ_LOGS, id=job_id), "run_logs_pkey")
    assert_walks(plan_of(filled, READ_REPLAYS, id=job_id, tenant=7), "events_feed")
