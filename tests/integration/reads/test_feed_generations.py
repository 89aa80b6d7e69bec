"""Feed positions where transaction numbers are not the ones they were: restore, promotion."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import psycopg2
import pytest
from sqlalchemy import Engine

from app.reads.events import Watch, feed, stream
from app.scheduler.maintenance.feed_generations import FeedGenerations
from app.stack.postgres import DATABASE, INSTALL, PORT, SUPERUSER, EmbeddedPostgres
from app.stack.services import running
from models.settings import DatabaseSettings
from models.store.errors import StateStoreUnavailable
from models.store.roles import DatabaseRole
from models.store.session import open_engine, transaction
from tests.support.database_fixture import DatabaseFixture
from tests.support.event_rows import announce, bring, end, end_in
from tests.support.standby import Pair, Postgres, ask, migrate, replicated


@pytest.fixture(autouse=True)
def often_alive(monkeypatch: pytest.MonkeyPatch) -> None:
    """A listener wakes up soon, also where nothing happens."""
    monkeypatch.setattr(stream, "KEEP_ALIVE_SECONDS", 0.2)


class Listener:
    """A client of the feed of tenant 1."""

    def __init__(self, engine: Engine, last_event_id: str | None = None) -> None:
        self.watch = Watch(engine, 5.0)
        self._messages = self.watch.open_feed(1, last_event_id)
        self.last_event_id = last_event_id or ""

    def hear(self, count: int, seconds: float = 10.0) -> list[str]:
        """The next events: ids of jobs that ended, or names of others."""
        heard: list[str] = []
        deadline = time.monotonic() + seconds
        while len(heard) < count:
            assert time.monotonic() < deadline, f"heard only {heard}"
            for line in next(self._messages).decode().splitlines():
                if line.startswith("id: "):
                    self.last_event_id = line[4:]
                elif line.startswith("data: "):
                    told = json.loads(line[6:])
                    heard.append(told.get("id") or told["event"])
        return heard


@contextmanager
def listening(engine: Engine, last_event_id: str | None = None) -> Iterator[Listener]:
    listener = Listener(engine, last_event_id)
    try:
        yield listener
    finally:
        listener.watch.close()


def hear_all(engine: Engine, last_event_id: str, count: int) -> list[str]:
    """Exactly so many events after a position: what ends next is the one after them."""
    with listening(engine, last_event_id) as listener:
        heard = listener.hear(count)
        last = end(DatabaseFixture(engine))
        assert listener.hear(1) == [last], "no event more, none less"
        return heard


def begin_generation(engine: Engine) -> None:
    """What the leader does soon after a restore or a promotion."""
    FeedGenerations(engine).run_once(0.0)


#: Makes the generation one of another cluster, as a restore does.
RESTORED = "UPDATE feed_generations SET identity = '1/00000001'"


def position_now(engine: Engine) -> str:
    with listening(engine) as listener:
        listener.hear(0)
        end(DatabaseFixture(engine))
        listener.hear(1)
        return listener.last_event_id


def test_a_write_in_another_database_of_the_cluster_does_not_delay_the_feed(
    engine: Engine, postgres: Postgres
) -> None:
    database = DatabaseFixture(engine)
    start = position_now(engine)
    with closing(connect_to(postgres, "postgres")) as other:
        other.cursor().execute("SELECT pg_current_xact_id()")
        ended = [end(database) for _ in range(3)]
        assert hear_all(engine, start, 3) == ended


def test_a_reader_resumes_while_a_write_in_another_database_ends(
    engine: Engine, postgres: Postgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For a moment it is open in the snapshot and belongs to no backend any more."""
    ended = feed.READ_ENDS.replace("pg_stat_get_activity(NULL)", "pg_stat_get_activity(0)")
    with closing(connect_to(postgres, "postgres")) as other:
        other.cursor().execute("SELECT pg_current_xact_id()")
        position = position_now(engine)
        with monkeypatch.context() as moment:
            moment.setattr(feed, "READ_ENDS", ended)
            with listening(engine, position) as listener:
                assert listener.last_event_id == position
    assert hear_all(engine, position, 0) == []


def test_a_write_in_this_database_still_delays_it(engine: Engine) -> None:
    database = DatabaseFixture(engine)
    start, late = position_now(engine), database.submit()
    with transaction(engine) as connection:
        end_in(connection, [late])
        later = end(database)
        with listening(engine, start) as listener, pytest.raises(AssertionError, match="only"):
            listener.hear(1, seconds=0.7)
    assert hear_all(engine, start, 2) == [late, later]


def test_prepared_transactions_delay_the_feed_of_their_own_database(tmp_path: Path) -> None:
    service = EmbeddedPostgres(tmp_path, {"max_prepared_transactions": "4"})
    with running(service, tmp_path / "logs") as server:
        service.create_database()
        migrate(service.url())
        ask(server, "INSERT INTO tenants (name) VALUES ('demo')", database=DATABASE)
        engine = open_engine(DatabaseSettings(database_url=service.url(), db_pool_size=5))
        start = position_now(engine)
        prepare = "SELECT pg_current_xact_id(); PREPARE TRANSACTION '{0}'"
        for name in ("postgres", DATABASE):
            with closing(connect_to(server, name)) as other:
                other.cursor().execute(prepare.format(name))
            ended = end(DatabaseFixture(engine))
            with listening(engine, start) as listener:
                if name == DATABASE:
                    with pytest.raises(AssertionError, match="heard only"):
                        listener.hear(1, seconds=0.7)
                    ask(server, f"ROLLBACK PREPARED '{name}'", database=name)
                assert listener.hear(1) == [ended]
                start = listener.last_event_id
        engine.dispose()


def connect_to(server: Postgres, name: str) -> Any:
    host = str(server.service.sockets)
    return psycopg2.connect(dbname=name, user=SUPERUSER, host=host, port=PORT)


@pytest.fixture
def restored_into(tmp_path: Path) -> Iterator[Postgres]:
    """A second cluster, younger than the first: its transaction numbers are lower."""
    with running(EmbeddedPostgres(tmp_path), tmp_path / "logs") as server:
        yield server


def restore(source: Engine, target: Postgres, name: str = DATABASE) -> Engine:
    """A dump of the database, restored in another cluster."""
    target.service.create_database(name)
    host = source.url.query["host"]
    dump = ["pg_dump", "-h", str(host), "-U", SUPERUSER, str(source.url.database)]
    load = ["psql", "-q", "-v", "ON_ERROR_STOP=1", "-h", str(target.service.sockets)]
    for server in (dump, load):
        server[0] = str(INSTALL / "bin" / server[0])
    dumped = subprocess.run(dump, check=True, capture_output=True).stdout
    create = "IF to_regrole('{0}') IS NULL THEN CREATE ROLE {0}; END IF;"
    created = " ".join(create.format(role) for role in DatabaseRole)
    roles = f"DO $$ BEGIN {created} END $$;".encode()
    dumped = roles + dumped  # they are the server's, not the database's
    subprocess.run([*load, "-U", SUPERUSER, name], input=dumped, check=True, capture_output=True)
    return open_engine(DatabaseSettings(database_url=target.service.url(name), db_pool_size=5))


def burn_numbers(engine: Engine, target: Postgres) -> None:
    """Use up transaction numbers until they are well above those of the other cluster."""
    [[lower]] = ask(target, "SELECT pg_current_xact_id()::text::bigint")
    with engine.connect() as connection:
        while (
            connection.exec_driver_sql("SELECT pg_current_xact_id()::text::bigint").scalar_one()
            < lower + 3000
        ):
            pass


def test_after_a_restore_nothing_is_repeated_and_nothing_lost(
    engine: Engine, postgres: Postgres, restored_into: Postgres
) -> None:
    database = DatabaseFixture(engine)
    burn_numbers(engine, restored_into)
    started = position_now(engine)
    before = [end(database) for _ in range(3)]
    with listening(engine, started) as listener:
        assert listener.hear(3) == before
    engine_after = restore(engine, restored_into)
    lost_tail = position_now(engine)  # told by the old cluster after the dump
    after = DatabaseFixture(engine_after)
    ended = end(after)  # before anybody has noticed
    announce(after, "anything", 1)
    more = end(after)
    begin_generation(engine_after)
    assert hear_all(engine_after, lost_tail, 3) == [ended, "anything", more]
    heard = hear_all(engine_after, started, 7)
    assert heard[:3] == before
    assert heard[3:6] == [ended, "anything", more]
    newest = position_now(engine_after)
    last = end(after)
    assert hear_all(engine_after, newest, 1) == [last]
    again = restore(engine_after, postgres, "restored_twice")
    engine_after.dispose()
    ended = end(DatabaseFixture(again))
    begin_generation(again)
    heard = hear_all(again, newest, 3)  # the second is the one that the look before ended
    assert (heard[0], heard[2]) == (last, ended)
    again.dispose()
    postgres.service.drop_database("restored_twice")


def test_readers_wait_for_the_leader_and_streams_go_on(engine: Engine) -> None:
    database = DatabaseFixture(engine)
    with listening(engine, position_now(engine)) as listener:
        before = end(database)
        assert listener.hear(1) == [before]
        database.execute(RESTORED)
        after = end(database)
        with pytest.raises(AssertionError, match="heard only"):
            listener.hear(1, seconds=0.7)
        with pytest.raises(StateStoreUnavailable, match="generation"), listening(engine):
            pass
        assert len(database.query("SELECT FROM feed_generations")) == 1
        begin_generation(engine)
        assert listener.hear(1) == [after]
        assert hear_all(engine, listener.last_event_id, 0) == []


def test_an_end_that_was_open_as_a_generation_began_is_sent_once(engine: Engine) -> None:
    database, keeper = DatabaseFixture(engine), FeedGenerations(engine)
    start, late = position_now(engine), database.submit()
    database.execute(RESTORED)
    with transaction(engine) as connection:
        end_in(connection, [late])
        for _ in range(2):
            keeper.run_once(0.0)
        later = end(database)  # has its number by the new generation
        with pytest.raises(StateStoreUnavailable), listening(engine, start):
            pass
    keeper.run_once(0.0)
    assert hear_all(engine, start, 2) == [late, later]


def test_a_generation_reads_no_end_that_came_along(engine: Engine) -> None:
    """There may be millions, with numbers below those of the new cluster."""
    database = DatabaseFixture(engine)
    numbers = "SELECT id, ended_xid::text FROM jobs WHERE id = ANY (%s::uuid[]) ORDER BY id"
    old = [end(database) for _ in range(3)]
    before = database.query(numbers, old)
    database.execute(RESTORED)
    ended = end(database)
    begin_generation(engine)
    assert database.query(numbers, old) == before
    start = f"{before[-1].ended_xid}-{old[-1]}"
    assert hear_all(engine, start, 1) == [ended]


def test_a_promoted_standby_that_lost_commits_repeats_some_and_loses_none(
    tmp_path: Path,
) -> None:
    with replicated(tmp_path) as pair:
        primary = open_engine(DatabaseSettings(database_url=pair.primary.service.url()))
        with primary.connect() as connection:
            connection.exec_driver_sql("INSERT INTO tenants (name) VALUES ('demo')")
        database = DatabaseFixture(primary)
        waiting = [database.submit() for _ in range(5)]
        pair.catch_up()
        cut_off(pair)
        for _ in range(20):  # told, and lost with the primary
            end(database)
        told = position_now(primary)
        pair.primary.kill()
        primary.dispose()
        pair.promote()
        standby = open_engine(DatabaseSettings(database_url=pair.standby.service.url()))
        survived = DatabaseFixture(standby)
        for job_id in waiting:
            bring(survived, job_id, "cancelled")
        begin_generation(standby)
        with listening(standby, told) as listener:
            assert listener.hear(5) == waiting
        standby.dispose()


def cut_off(pair: Pair) -> None:
    """The standby no longer receives what the primary writes."""
    ask(pair.standby, "ALTER SYSTEM SET primary_conninfo = ''")
    ask(pair.standby, "SELECT pg_reload_conf()")
    deadline = time.monotonic() + 10
    while ask(pair.primary, "SELECT 1 FROM pg_stat_replication"):
        assert time.monotonic() < deadline, "the standby is still connected"
        time.sleep(0.05)


def test_migrating_a_database_that_was_restored_before_begins_a_generation(
    engine: Engine, restored_into: Postgres, database_url: str
) -> None:
    burn_numbers(engine, restored_into)
    old = position_now(engine)
    engine.dispose()
    run_alembic(database_url, "downgrade", "0007")
    engine_after = restore(engine, restored_into)
    engine_after.dispose()
    migrate(restored_into.service.url())
    after = DatabaseFixture(engine_after)
    ended = end(after)
    begin_generation(engine_after)  # finishes the one that the migration began
    assert hear_all(engine_after, old, 1) == [ended]
    engine_after.dispose()
    run_alembic(database_url, "upgrade", "head")


def run_alembic(url: str, *arguments: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "alembic", *arguments],
        env={**os.environ, "FAIRLINE_DATABASE_URL": url},
        check=True,
        capture_output=True,
    )
