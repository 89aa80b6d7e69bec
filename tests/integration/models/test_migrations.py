"""Migrations go both ways with jobs in every state, and lose none."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from sqlalchemy import Engine

from app.stack.spec import PROJECT_ROOT
from models.jobs.states import JobStatus
from models.schema import Base
from tests.support.database_fixture import DatabaseFixture


def alembic(database_url: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        cwd=PROJECT_ROOT,
        env={**os.environ, "FAIRLINE_DATABASE_URL": database_url},
        check=True,
        capture_output=True,
    )


def test_jobs_of_every_state_survive_the_way_down_and_up(database_url: str, engine: Engine) -> None:
    database = DatabaseFixture(engine)
    for status in JobStatus:
        database.execute(
            "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
            " VALUES (gen_random_uuid(), 1, 'score_application', 'medium', '{}', %s)",
            status.value,
        )
    engine.dispose()
    alembic(database_url, "downgrade", "0001")
    alembic(database_url, "upgrade", "head")
    rows = database.query("SELECT status, dependency, ended_xid IS NOT NULL AS ended FROM jobs")
    assert {row.status for row in rows} == {status.value for status in JobStatus}
    for row in rows:
        assert row.ended == JobStatus(row.status).terminal
        assert row.dependency == ("" if row.ended else "claude"), "old rows join their lane"
    assert not database.miscounted()
    assert database.query("SELECT status::text FROM jobs WHERE status = 'dead'")
    database.execute(
        "UPDATE jobs SET status = 'queued', replays = 1, ended_xid = NULL WHERE status = 'dead'"
    )
    assert not database.miscounted()


@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8'")
def test_the_tables_are_what_the_migrations_make(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
