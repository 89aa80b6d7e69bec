"""A server that is near by its position is a standby of ours only if it has the same history."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.reads.standby import StandbyReads
from app.stack.postgres import DATABASE
from app.stack.services import running
from models.database_url import standby_url
from models.settings import DatabaseSettings
from models.store.session import open_engine, open_standby
from tests.support.standby import Pair, Postgres, ask, copy_of, replicated
from tests.support.waiting import wait_for

LIMIT_SECONDS = 60.0
ADD = "INSERT INTO tenants (name) VALUES (%s)"
MANY = "INSERT INTO tenants (name) SELECT %s || n FROM generate_series(1, 2000) AS n"
SAME = "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with replicated(tmp_path) as servers:
        yield servers


def engines(primary: Postgres, standby: Postgres, database: str) -> tuple[Engine, Engine]:
    url = standby.service.url().replace(f"/{DATABASE}", f"/{database}")
    return (
        open_standby(DatabaseSettings(database_url=standby_url(url))),
        open_engine(DatabaseSettings(database_url=primary.service.url())),
    )


@contextmanager
def reading(
    primary: Postgres, standby: Postgres, database: str = DATABASE
) -> Iterator[StandbyReads]:
    both = engines(primary, standby, database)
    reads = StandbyReads(*both, LIMIT_SECONDS)
    reads._thread = threading.current_thread()  # its own would go on as long as the process
    yield reads
    for engine in both:
        engine.dispose()


def is_near(reads: StandbyReads) -> bool:
    reads.measure()
    with ExitStack() as stack:
        return reads.take(stack) is not None


def test_another_database_is_told_and_not_read(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    pair.catch_up()
    with reading(pair.primary, pair.standby, "postgres") as reads:
        for _ in range(3):
            assert not is_near(reads)
            time.sleep(0.2)
    [told] = [record.message for record in caplog.records if "lists are read" in record.message]
    assert "the primary instead of the standby" in told


def test_a_primary_instead_of_a_standby_is_told(
    pair: Pair, caplog: pytest.LogCaptureFixture
) -> None:
    with reading(pair.primary, pair.primary) as reads:
        assert not is_near(reads)
    [told] = [record.message for record in caplog.records if "lists are read" in record.message]
    assert "standby" in told


def test_a_standby_that_follows_a_former_primary_is_not_read(pair: Pair, tmp_path: Path) -> None:
    """Its log is longer than that of the one that was promoted, and another one."""
    third = copy_of(pair.primary.service, tmp_path / "third")
    with running(third, tmp_path / "third/logs") as other:
        for name in ("before", "lost"):
            if name == "lost":
                ask(pair.standby, "ALTER SYSTEM SET primary_conninfo = ''")
                ask(pair.standby, "SELECT pg_reload_conf()")
                wait_for(lambda: not ask(pair.standby, "SELECT pid FROM pg_stat_wal_receiver"))
            ask(pair.primary, MANY, name, database=DATABASE)
            [[end]] = ask(pair.primary, "SELECT pg_current_wal_lsn()")
            wait_for(lambda end=end: ask(other, SAME, end)[0][0])  # type: ignore[misc]
        pair.promote()
        ask(pair.standby, ADD, "kept", database=DATABASE)
        with reading(pair.standby, other) as reads:
            for _ in range(5):
                assert not is_near(reads)
                time.sleep(0.2)


def test_a_standby_that_follows_the_promoted_one_is_read_again(pair: Pair, tmp_path: Path) -> None:
    third = copy_of(pair.standby.service, tmp_path / "third")
    with running(third, tmp_path / "third/logs") as other:
        pair.promote()
        ask(pair.standby, ADD, "kept", database=DATABASE)
        with reading(pair.standby, other) as reads:
            ask(pair.standby, "CHECKPOINT")
            [[end]] = ask(pair.standby, "SELECT pg_current_wal_lsn()")
            wait_for(lambda: ask(other, SAME, end)[0][0])
            ask(other, "CHECKPOINT")
            wait_for(lambda: is_near(reads))
