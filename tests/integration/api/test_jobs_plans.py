"""Queries of the API for jobs use their index, however large the table."""

from __future__ import annotations

import re
from typing import Any

import pytest

from app.reads.job_views import READ_JOBS
from app.reads.usage import READ_USAGE
from models.jobs.admit import READ_KEYS
from tests.support.database_fixture import DatabaseFixture

FILL = (
    """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, attempt, finished_at)
    SELECT gen_random_uuid(), n %% 7 + 1, 'echo', 'short', '{}',
           CASE WHEN n %% 50 = 0 THEN 'dead'::job_status WHEN n %% 9 = 0 THEN 'queued'
                ELSE 'succeeded' END, (n %% 9 > 0)::int, now()
    FROM generate_series(1, 30000) AS n
    """,
    """
    INSERT INTO attempts (job_id, lease, status)
    SELECT id, run, 'scheduled' FROM jobs, generate_series(1, 5) AS run WHERE status = 'dead'
    """,
    """
    INSERT INTO idempotency_keys (tenant_id, key, digest, job_ids)
    SELECT 1, 'k' || n, '\\x00', ARRAY[gen_random_uuid()] FROM generate_series(1, 20000) AS n
    """,
    """
    INSERT INTO usage (tenant_id, pool, day, shard)
    SELECT n, 'short', date '2026-01-01' + day, 0
    FROM generate_series(1, 100) AS n, generate_series(1, 100) AS day
    """,
)
TABLES = r"Seq Scan on (jobs|attempts|idempotency_keys|usage)\b"


@pytest.fixture(scope="module")
def filled(api_database: DatabaseFixture) -> DatabaseFixture:
    """30,000 jobs of seven tenants, with fresh statistics."""
    for sql in FILL:
        api_database.execute(sql)
    api_database.execute("ANALYZE")
    return api_database


def plan_of(database: DatabaseFixture, sql: str, analyze: bool = False, **parameters: Any) -> str:
    how = "(ANALYZE, TIMING OFF, SUMMARY OFF)" if analyze else ""
    with database.engine.connect() as connection:
        rows = connection.exec_driver_sql(f"EXPLAIN {how} {sql}", parameters)
        plan = "\n".join(row[0] for row in rows)
    assert not re.search(TABLES, plan), plan
    return plan


def ids_of(database: DatabaseFixture, status: str, count: int) -> list[str]:
    rows = database.query("SELECT id::text FROM jobs WHERE status = %s LIMIT %s", status, count)
    return [row[0] for row in rows]


@pytest.mark.parametrize("size", [1, 20, 500])
def test_pollers_find_their_jobs_by_key(filled: DatabaseFixture, size: int) -> None:
    plan = plan_of(filled, READ_JOBS, ids=ids_of(filled, "succeeded", size))
    assert "jobs_pkey" in plan and "attempts_pkey" in plan


def test_attempts_are_looked_up_for_jobs_that_have_some(filled: DatabaseFixture) -> None:
    first_try = plan_of(filled, READ_JOBS, True, ids=ids_of(filled, "succeeded", 20))
    dead = plan_of(filled, READ_JOBS, True, ids=ids_of(filled, "dead", 20))
    lookup = r"(?:using|on) attempts_pkey.*\((never executed|actual)"
    found = [re.findall(lookup, plan) for plan in (first_try, dead)]
    assert found == [["never executed"], ["actual"]], first_try


@pytest.mark.parametrize("size", [1, 500])
def test_keys_are_looked_up_by_key(filled: DatabaseFixture, size: int) -> None:
    keys = [f"k{number}" for number in range(size)]
    plan = plan_of(filled, READ_KEYS, places=list(range(size)), key_tenants=[1] * size, keys=keys)
    assert "idempotency_keys_pkey" in plan


def test_usage_of_a_tenant_is_one_stretch_of_the_key(filled: DatabaseFixture) -> None:
    assert "usage_pkey" in plan_of(
        filled, READ_USAGE, tenant=5, first="2026-01-10", last="2026-01-20"
    )
