"""Migrations beside a stack that works: no lock is waited for long, no index stops the writers."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.stack.spec import PROJECT_ROOT
from tests.integration.models.test_migrations import alembic
from tests.support.database_fixture import DatabaseFixture
from tests.support.locks import held_lock

#: Given as a file of its own after the last one.
INDEX = """
from migrations.ddl import build_index, drop_index

revision, down_revision = "9999", "{last}"


def upgrade():
    build_index("jobs_by_lease", "jobs (lease) WHERE status = 'running'")


def downgrade():
    drop_index("jobs_by_lease")
"""
READ_INDEX = """
    SELECT indisvalid FROM pg_index WHERE indexrelid = to_regclass('jobs_by_lease')
"""


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    return DatabaseFixture(engine)


def test_migration_gives_way_and_is_repeated(database_url: str, database: DatabaseFixture) -> None:
    database.engine.dispose()
    alembic(database_url, "downgrade", "0005")
    with held_lock(database, "SELECT FROM processes"):
        migrating = threading.Thread(target=alembic, args=(database_url, "upgrade", "head"))
        migrating.start()
        database.wait_until_waiting()
        began = time.monotonic()
        database.execute("INSERT INTO processes (name, kind) VALUES ('w', 'worker')")
        assert time.monotonic() - began < 4, "everybody waits behind the migration"
    migrating.join(30)
    assert database.query("SELECT renewed_at FROM processes")[0].renewed_at is None


def test_index_is_built_while_others_write(
    database_url: str, database: DatabaseFixture, tmp_path: Path
) -> None:
    """Also after an attempt that was interrupted and left an index that is not valid."""
    database.execute("CREATE INDEX jobs_by_lease ON jobs (lease)")
    database.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'jobs_by_lease'::regclass"
    )
    locations = f"{PROJECT_ROOT}/migrations/versions{os.pathsep}{tmp_path}"
    last = max(Path(PROJECT_ROOT, "migrations/versions").glob("0*.py")).name[:4]
    (tmp_path / "9999_index.py").write_text(INDEX.format(last=last))
    (tmp_path / "alembic.ini").write_text(
        f"[alembic]\nscript_location = {PROJECT_ROOT}/migrations\npath_separator = os\n"
        f"prepend_sys_path = {PROJECT_ROOT}\nversion_locations = {locations}\n"
    )
    config = ("-c", str(tmp_path / "alembic.ini"))
    with held_lock(database, "UPDATE jobs SET priority = 1"):
        building = threading.Thread(target=alembic, args=(database_url, *config, "upgrade", "head"))
        building.start()
        database.wait_until_waiting()
        database.submit()
        assert database.query(READ_INDEX) in ([], [(False,)]), "it waits for the old transaction"
    building.join(30)
    assert database.query(READ_INDEX) == [(True,)]
    database.engine.dispose()
    alembic(database_url, *config, "downgrade", "-1")
    assert database.query(READ_INDEX) == []
