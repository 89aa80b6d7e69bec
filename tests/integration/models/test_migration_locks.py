"""Migrations beside a stack that works: no lock is waited for long, no index stops the writers."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.stack.spec import PROJECT_ROOT
from models.store.session import transaction
from tests.integration.models.test_migrations import HEAD, alembic
from tests.support.database_fixture import DatabaseFixture
from tests.support.locks import held_lock
from tests.support.waiting import wait_for

#: Given as a file of its own after the last one.
TWO_TABLES = """
from alembic import op

revision, down_revision = "9999", "{last}"


def upgrade():
    op.execute("ALTER TABLE jobs ADD COLUMN new_one int")
    op.execute("SELECT pg_sleep(0.2)")  # the other one waits first, and would be the one to end
    op.execute("ALTER TABLE usage ADD COLUMN new_one int")


def downgrade():
    pass
"""
#: The same.
INDEX = """
from migrations.ddl import build_index, drop_index

revision, down_revision = "9999", "{last}"


def upgrade():
    build_index("jobs_by_lease", "jobs (lease) WHERE status = 'running'")


def downgrade():
    drop_index("jobs_by_lease")
"""
JOBS_ARE_LOCKED = """
    SELECT 1 FROM pg_locks
    WHERE relation = 'jobs'::regclass AND mode = 'AccessExclusiveLock' AND granted
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


def planted(folder: Path, migration: str) -> tuple[str, str]:
    """Options of alembic that add a migration after the last one."""
    locations = f"{PROJECT_ROOT}/migrations/versions{os.pathsep}{folder}"
    (folder / "9999_planted.py").write_text(migration.format(last=HEAD))
    (folder / "alembic.ini").write_text(
        f"[alembic]\nscript_location = {PROJECT_ROOT}/migrations\npath_separator = os\n"
        f"prepend_sys_path = {PROJECT_ROOT}\nversion_locations = {locations}\n"
    )
    return "-c", str(folder / "alembic.ini")


def test_of_a_deadlock_only_the_migration_is_given_up(
    database_url: str, database: DatabaseFixture, tmp_path: Path
) -> None:
    """A worker of the previous version may take such an error for its job's own."""
    config = planted(tmp_path, TWO_TABLES)
    with transaction(database.engine) as writer:
        writer.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        writer.exec_driver_sql("LOCK TABLE usage IN ROW EXCLUSIVE MODE")
        migrating = threading.Thread(
            target=alembic, args=(database_url, *config, "upgrade", "head")
        )
        migrating.start()
        wait_for(lambda: database.query(JOBS_ARE_LOCKED) != [])
        writer.exec_driver_sql("LOCK TABLE jobs IN ROW EXCLUSIVE MODE")
    migrating.join(60)
    assert database.query("SELECT new_one FROM jobs") == []


def test_index_is_built_while_others_write(
    database_url: str, database: DatabaseFixture, tmp_path: Path
) -> None:
    """Also after an attempt that was interrupted and left an index that is not valid."""
    database.execute("CREATE INDEX jobs_by_lease ON jobs (lease)")
    database.execute(
        "UPDATE pg_index SET indisvalid = false WHERE indexrelid = 'jobs_by_lease'::regclass"
    )
    config = planted(tmp_path, INDEX)
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
