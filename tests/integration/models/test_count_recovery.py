"""Counts after a crash of the server, and beside transactions that are prepared."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from sqlalchemy.exc import DBAPIError

from app.stack.postgres import DATABASE, EmbeddedPostgres
from app.stack.services import running
from models.job_counts import CountFolder
from models.settings import DatabaseSettings
from models.store.session import open_engine
from tests.integration.models.test_job_counts import INSERT, deltas, queued
from tests.support.database_fixture import DatabaseFixture
from tests.support.standby import ask, migrate


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EmbeddedPostgres]:
    home: Path = tmp_path_factory.mktemp("crashing")
    # What was not committed is written late, so that a crash loses it.
    late = {"wal_writer_delay": "10s", "max_prepared_transactions": "4"}
    service = EmbeddedPostgres(home, late)
    with running(service, home / "logs") as started:
        service.create_database()
        migrate(service.url())
        ask(started, "INSERT INTO tenants (name) VALUES ('demo')", database=DATABASE)
        yield service


@pytest.fixture
def database(
    server: EmbeddedPostgres, monkeypatch: pytest.MonkeyPatch
) -> Iterator[DatabaseFixture]:
    monkeypatch.setattr("models.job_counts.WORTH_FOLDING", 1)
    engine = open_engine(DatabaseSettings(database_url=server.url(), db_pool_size=5))
    yield DatabaseFixture(engine)
    engine.dispose()


def open_transaction(database: DatabaseFixture) -> Any:
    url = database.engine.url.set(drivername="postgresql")
    return psycopg2.connect(url.render_as_string(hide_password=False))


def crash(database: DatabaseFixture, backend: int) -> None:
    """Kill a backend: the server ends all others, and recovers from its log."""
    os.kill(backend, signal.SIGKILL)
    time.sleep(0.2)
    deadline = time.monotonic() + 30
    while True:
        try:
            database.query("SELECT 1")
            return
        except DBAPIError:
            assert time.monotonic() < deadline
            time.sleep(0.1)


@pytest.mark.parametrize("later", [0, 150], ids=["below", "above the old numbers"])
def test_counts_are_right_after_a_crash_that_lost_numbers(
    database: DatabaseFixture, later: int
) -> None:
    folder = CountFolder(database.engine)
    before = queued(database)
    for _ in range(3):
        database.submit()
    folder.run_once(0.0)
    folder.run_once(0.0)
    lost = open_transaction(database)
    for _ in range(60):
        lost.cursor().execute(INSERT)
    folder.run_once(0.0)
    crash(database, lost.get_backend_pid())
    slow = open_transaction(database)
    slow.cursor().execute(INSERT)
    [drawn] = database.query("SELECT last_value FROM job_count_deltas_id_seq")
    assert drawn.last_value < folder._next.delta, "it has numbers that were drawn before"
    for _ in range(later):
        database.submit()
    database.submit()
    for _ in range(3):
        folder.run_once(0.0)
    slow.commit()
    slow.close()
    assert queued(database) == queued(database, 0) == before + 3 + later + 2
    for _ in range(3):
        folder.run_once(0.0)
    assert deltas(database) == 0
    assert queued(database) == queued(database, 0) == before + 3 + later + 2
    assert not database.miscounted()


def test_a_transaction_that_is_prepared_between_two_looks_is_still_open(
    database: DatabaseFixture,
) -> None:
    folder = CountFolder(database.engine)
    database.submit()  # the first of its kind makes others wait until it is committed
    for _ in range(3):
        folder.run_once(0.0)
    before = queued(database)
    slow = open_transaction(database)
    slow.cursor().execute(INSERT)
    database.submit()
    folder.run_once(0.0)
    slow.cursor().execute("PREPARE TRANSACTION 'slow'")
    slow.close()
    for _ in range(3):
        folder.run_once(0.0)
    assert deltas(database) == 2, "the one behind it is not folded"
    database.execute("COMMIT PREPARED 'slow'")
    for _ in range(3):
        folder.run_once(0.0)
    assert deltas(database) == 0 and queued(database) == before + 2
