"""Migrations go both ways with jobs in every state, and lose none."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

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


#: As the version before 0005 writes a count.
ADD_BAD = """
    INSERT INTO tallies AS tally (kind, bucket, name, total, bad)
    VALUES ('type', date_bin('1 hour', now(), 'epoch'), %s, %s, %s)
    ON CONFLICT (kind, bucket, name) DO UPDATE
    SET total = tally.total + excluded.total, bad = tally.bad + excluded.bad
"""
#: And as this one does.
ADD_AMOUNT = ADD_BAD.replace("bad", "amount")
OLD_VERDICTS = [("quarantine", "echo"), ("spike", "8"), ("throttle", "7:medium")]
NEW_VERDICTS = [
    ("quarantine", "echo", 0, ""),
    ("spike", "", 8, ""),
    ("throttle", "", 7, "medium"),
]


def tallies(database: DatabaseFixture, column: str) -> list[tuple[Any, ...]]:
    return [
        tuple(row)
        for row in database.query(f"SELECT name, total, {column} FROM tallies ORDER BY name")
    ]


def verdicts(database: DatabaseFixture, columns: str) -> list[tuple[Any, ...]]:
    rows = database.query(f"SELECT {columns} FROM verdicts ORDER BY kind, tenant_id")
    return [tuple(row) for row in rows]


def test_counts_and_restrictions_survive_the_way_up_and_down(
    database_url: str, engine: Engine
) -> None:
    database = DatabaseFixture(engine)
    engine.dispose()
    alembic(database_url, "downgrade", "0004")
    database.execute(ADD_BAD, "echo", 9, 4)
    for kind, name in OLD_VERDICTS:
        database.execute("INSERT INTO verdicts (kind, name) VALUES (%s, %s)", kind, name)
    engine.dispose()
    alembic(database_url, "upgrade", "head")
    assert tallies(database, "amount") == [("echo", 9, 4)]
    assert verdicts(database, "kind, name, tenant_id, pool") == NEW_VERDICTS
    database.execute(ADD_AMOUNT, "echo", 1, 1)
    engine.dispose()
    alembic(database_url, "downgrade", "0004")
    assert tallies(database, "bad") == [("echo", 10, 5)]
    rows = database.query("SELECT kind, name FROM verdicts ORDER BY kind")
    assert [tuple(row) for row in rows] == OLD_VERDICTS
    engine.dispose()
    alembic(database_url, "upgrade", "head")


@pytest.mark.parametrize("came_from", ["upgrade", "downgrade"])
def test_both_versions_write_side_by_side_in_between(
    database_url: str, engine: Engine, came_from: str
) -> None:
    database = DatabaseFixture(engine)
    engine.dispose()
    alembic(database_url, "downgrade", "0005" if came_from == "downgrade" else "0004")
    alembic(database_url, "upgrade", "0005")
    for sql in (ADD_BAD, ADD_AMOUNT, ADD_BAD, ADD_AMOUNT):
        database.execute(sql, "begun by bad", 2, 1)
    for sql in (ADD_AMOUNT, ADD_BAD):
        database.execute(sql, "begun by amount", 2, 1)
    for column in ("bad", "amount"):
        assert tallies(database, column) == [("begun by amount", 4, 2), ("begun by bad", 8, 4)]
    old = "INSERT INTO verdicts (kind, name) VALUES (%s, %s) ON CONFLICT (kind, name) DO NOTHING"
    new = (
        "INSERT INTO verdicts (kind, name, tenant_id, pool) VALUES (%s, %s, %s, %s)"
        " ON CONFLICT (kind, name, tenant_id, pool) DO NOTHING"
    )
    for number, (before, after) in enumerate(zip(OLD_VERDICTS, NEW_VERDICTS, strict=True)):
        for sql, row in ((old, before), (new, after))[:: -1 if number % 2 else 1]:
            database.execute(sql, *row)
    assert verdicts(database, "kind, name") == OLD_VERDICTS
    assert [row[2:] for row in verdicts(database, "kind, name, tenant_id, pool")] == [
        row[2:] for row in NEW_VERDICTS
    ]
    engine.dispose()
    alembic(database_url, "upgrade", "head")
    assert verdicts(database, "kind, name, tenant_id, pool") == NEW_VERDICTS


@pytest.mark.filterwarnings("ignore:Did not recognize type 'xid8'")
def test_the_tables_are_what_the_migrations_make(engine: Engine) -> None:
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True})
        assert compare_metadata(context, Base.metadata) == []
