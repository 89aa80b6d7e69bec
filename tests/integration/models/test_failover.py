"""Failovers: connections to a server that only reads are given up, and hosts are tried in turn."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, make_url

from app.stack.postgres import PORT
from models.settings import DatabaseSettings
from models.store.abandoned import server_of
from models.store.errors import StateStoreUnavailable
from models.store.session import connect, execute, fetch, open_engine
from tasks.watchdog.emergency_write import connect_arguments, write_now
from tests.support.api_server import serving
from tests.support.slow_link import SlowLink
from tests.support.standby import Pair, Postgres, ask, migrate, replicated, set_server

ADD = "INSERT INTO tenants (name) VALUES (%(name)s)"
#: What a worker may write.
COUNT = """
    INSERT INTO tallies (kind, bucket, name, total) VALUES ('submission', now(), 'emergency', 1)
"""
READ = "SELECT 1 FROM tenants WHERE name = %(name)s"
RECOVERY_SECONDS = 20.0


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[Pair]:
    with replicated(tmp_path) as servers:
        yield servers


def engine_of(url: str) -> Engine:
    return open_engine(DatabaseSettings(database_url=url))


def until_refused(engine: Engine) -> None:
    """A server takes a new setting at its next command, or the one after."""
    for attempt in range(100):
        try:
            execute(engine, ADD, {"name": f"attempt {attempt}"})
        except StateStoreUnavailable:
            return
        time.sleep(0.02)
    pytest.fail("it was never refused")


def tenants(server: Postgres) -> set[str]:
    rows = ask(server, "SELECT name FROM tenants", database="fairline")
    return {row[0] for row in rows}


def test_the_engine_follows_a_promoted_standby_while_the_old_primary_only_reads(
    pair: Pair,
) -> None:
    engine, reader = engine_of(pair.url()), engine_of(pair.url())
    execute(engine, ADD, {"name": "before"})
    assert fetch(reader, READ, {"name": "before"})
    pair.catch_up()
    pair.promote()
    set_server(pair.primary, "default_transaction_read_only", "on")
    until_refused(engine)
    execute(engine, ADD, {"name": "after"})
    assert tenants(pair.standby) >= {"before", "after"}
    assert "after" not in tenants(pair.primary)
    # A process that only reads follows too: the old server says that it changed.
    fetch(reader, READ, {"name": "after"})
    assert fetch(reader, READ, {"name": "after"})
    for opened in (engine, reader):
        opened.dispose()


def test_the_engine_leaves_a_former_primary_that_nobody_stopped(pair: Pair) -> None:
    """It says that it takes writes, but the standby that should confirm them was promoted."""
    settings = DatabaseSettings(database_url=pair.url(), db_statement_seconds=1.0)
    engine = open_engine(settings)
    execute(engine, ADD, {"name": "before"})
    pair.catch_up()
    set_server(pair.primary, "synchronous_standby_names", "promoted")
    pair.promote()
    until_refused(engine)
    began = time.monotonic()
    execute(engine, ADD, {"name": "after"})
    assert time.monotonic() - began < 5
    assert "after" in tenants(pair.standby)
    assert fetch(engine, READ, {"name": "after"})
    set_server(pair.primary, "synchronous_standby_names", None)
    engine.dispose()


def test_api_commands_and_emergency_writes_follow_a_killed_primary(
    pair: Pair, tmp_path: Path
) -> None:
    ask(pair.primary, "INSERT INTO tenants (name) VALUES ('demo')", database="fairline")
    pair.catch_up()
    with serving(pair.url(), tmp_path / "logs", api_workers=1) as api:
        api.submit_job()
        pair.primary.kill()
        pair.promote()
        deadline = time.monotonic() + RECOVERY_SECONDS
        while api.post({"type": "echo"}, path="/jobs").status != 202:
            assert time.monotonic() < deadline, "the API did not recover"
            time.sleep(0.1)
    url = DatabaseSettings(database_url=pair.url()).database_url
    write_now(connect_arguments(make_url(url)), [(COUNT, {})])
    migrate(pair.url())
    counted = "SELECT name FROM tallies WHERE name = 'emergency'"
    assert ask(pair.standby, counted, database="fairline")


def times_tried(silent: socket.socket) -> int:
    """How often somebody has connected since the last look."""
    silent.setblocking(False)
    tried = 0
    with suppress(BlockingIOError):
        while True:
            silent.accept()[0].close()
            tried += 1
    return tried


def test_a_host_that_does_not_answer_is_passed_over_in_time(
    postgres: Postgres, database_url: str
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        silent_host = f"127.0.0.1:{silent.getsockname()[1]}"
        hosts = f"host={silent_host}&host={postgres.service.sockets}"
        name = make_url(database_url).database
        given = f"postgresql+psycopg2://postgres@/{name}?{hosts}"
        url = DatabaseSettings(database_url=given).database_url
        began = time.monotonic()
        engine = engine_of(url)
        execute(engine, ADD, {"name": "second host"})
        assert time.monotonic() - began < 10
        assert times_tried(silent) == 1
        engine.pool.dispose()
        execute(engine, ADD, {"name": "second host again"})
        assert times_tried(silent) == 0, "the host that answered last is tried first"
        engine.dispose()
        write_now(connect_arguments(make_url(url)), [(COUNT, {})])


@pytest.mark.parametrize("servers", ["localhost:{0}", "nowhere.invalid:{0},localhost:{0}"])
def test_servers_are_found_by_their_names(
    postgres: Postgres, database_url: str, servers: str
) -> None:
    with SlowLink(str(postgres.service.sockets), PORT) as link:
        named = servers.format(link.port)
        engine = engine_of(
            f"postgresql+psycopg2://postgres@{named}/{make_url(database_url).database}"
        )
        execute(engine, ADD, {"name": "by name"})
        with connect(engine) as connection:
            raw: Any = connection.connection.dbapi_connection
            assert server_of(raw) == ("localhost", link.port)
        engine.dispose()


def test_one_host_that_only_reads_for_a_while_recovers(postgres: Postgres, engine: Engine) -> None:
    execute(engine, ADD, {"name": "one"})
    set_server(postgres, "default_transaction_read_only", "on")
    try:
        until_refused(engine)
        with pytest.raises(StateStoreUnavailable):
            execute(engine, ADD, {"name": "refused"})
        assert fetch(engine, READ, {"name": "one"})
    finally:
        set_server(postgres, "default_transaction_read_only", None)
    deadline = time.monotonic() + RECOVERY_SECONDS
    while True:
        try:
            execute(engine, ADD, {"name": "two"})
        except StateStoreUnavailable:
            assert time.monotonic() < deadline, "it did not recover"
            time.sleep(0.05)
        else:
            return
