"""A lock that somebody holds is the trouble of who waits for it, and of nobody else."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest
from celery import Celery
from sqlalchemy import Engine

from app.config import Settings
from app.scheduler.service import SchedulerService
from models.presence import Presence, announce
from models.settings import DatabaseSettings
from models.store.errors import StatementTooSlow
from models.store.session import connect, open_engine, transaction
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.locks import held_lock

#: No generation of the feed has begun, or it is not finished.
UNFINISHED = """
    SELECT FROM feed_generations HAVING count(*) < 2 OR count(renumber_after) > 0
"""
#: What a statement gets; enough for the quick ones on a busy machine.
SECONDS = 1.0


@pytest.fixture
def database(engine: Engine) -> Iterator[DatabaseFixture]:
    yield DatabaseFixture(engine)
    open_engine(DatabaseSettings()).dispose()  # how long psycopg2 waits is the process's, not ours


class Broker(FakePublisher):
    def close(self) -> None:
        """It has no connection."""


def impatient(url: str) -> DatabaseSettings:
    return DatabaseSettings(database_url=url, db_statement_seconds=SECONDS)


def test_statement_that_waits_too_long_is_told_from_a_store_that_is_away(
    database_url: str, database: DatabaseFixture
) -> None:
    job_id = database.submit()
    # The server gives up a twentieth sooner than the client: on a busy machine that must be enough.
    engine = open_engine(DatabaseSettings(database_url=database_url, db_statement_seconds=4.0))
    with transaction(database.engine) as holder:
        holder.exec_driver_sql("SELECT FROM jobs WHERE id = %s FOR UPDATE", (job_id,))
        with pytest.raises(StatementTooSlow), connect(engine) as connection:
            connection.exec_driver_sql("UPDATE jobs SET priority = 1 WHERE id = %s", (job_id,))
    engine.dispose()


def test_lock_that_is_not_to_be_had_in_time_is_a_slow_statement(
    database: DatabaseFixture,
) -> None:
    with transaction(database.engine) as holder:
        holder.exec_driver_sql("LOCK TABLE jobs IN SHARE UPDATE EXCLUSIVE MODE")
        with pytest.raises(StatementTooSlow), connect(database.engine) as waiting:
            waiting.exec_driver_sql(
                "DO $$ BEGIN SET LOCAL lock_timeout = '50ms'; LOCK TABLE jobs IN SHARE MODE; END $$"
            )


def test_vacuum_after_a_restore_delays_neither_submissions_nor_dispatch_nor_the_feed(
    database_url: str, database: DatabaseFixture
) -> None:
    database.leader.resign()
    database.execute("UPDATE feed_generations SET identity = '1/00000001'")
    settings = Settings(database_url=database_url, broker_url="amqp://127.0.0.1:1//")
    service = SchedulerService(open_engine(settings), Celery(), settings)
    broker = service._publisher = Broker()
    for timed in service._roles:
        if hasattr(timed.role, "_publisher"):
            timed.role._publisher = broker
    announce(database.engine, Presence("w9", "worker", ["medium"], slots=1000))
    database.keep_present()
    stop, slowest = threading.Event(), 0.0
    running = threading.Thread(target=service.run, args=(stop,))
    with transaction(database.engine) as vacuum:
        vacuum.exec_driver_sql("LOCK TABLE jobs, events IN SHARE UPDATE EXCLUSIVE MODE")
        running.start()
        try:
            deadline = time.monotonic() + 60
            submitted = 0
            while database.query(UNFINISHED) or len(broker.sent) < submitted or submitted < 20:
                assert time.monotonic() < deadline, f"{len(broker.sent)} of {submitted} dispatched"
                vacuum.exec_driver_sql("SELECT")  # or it would be ended as frozen
                if submitted < 20:
                    began = time.monotonic()
                    database.submit()
                    slowest = max(slowest, time.monotonic() - began)
                    submitted += 1
                time.sleep(0.05)
        finally:
            stop.set()
            running.join(15)
    assert slowest < 3.0, "a statement that waits for the lock takes five"


def test_frozen_transaction_loses_its_locks(database_url: str, database: DatabaseFixture) -> None:
    job_id = database.submit()
    engine = open_engine(impatient(database_url))
    frozen = engine.connect().execution_options(isolation_level="READ COMMITTED")
    frozen.exec_driver_sql("SELECT FROM jobs WHERE id = %s FOR UPDATE", (job_id,))
    open_engine(DatabaseSettings()).dispose()  # this process waits as long as usual again
    # Waits for the lock, and gets it when the server gives up on the holder.
    database.execute("UPDATE jobs SET priority = 1 WHERE id = %s", job_id)
    assert database.job(job_id).priority == 1
    frozen.invalidate()
    engine.dispose()


def test_reaper_works_while_another_role_waits_for_a_lock(
    database_url: str, database: DatabaseFixture
) -> None:
    claim = database.start()
    database.leader.resign()
    settings = Settings(
        database_url=database_url,
        broker_url="amqp://127.0.0.1:1//",
        db_statement_seconds=SECONDS,
        db_pool_size=3,
    )
    service = SchedulerService(open_engine(settings), Celery(), settings)
    stop = threading.Event()
    with held_lock(database, "LOCK TABLE circuits IN ACCESS EXCLUSIVE MODE"):
        running = threading.Thread(target=service.run, args=(stop,))
        running.start()
        try:
            while database.query("SELECT holder FROM leaders")[0].holder == "leader":
                stop.wait(0.05)
            stop.wait(2 * SECONDS)  # it has met the lock by now
            database.expire_leases()
            for _ in range(200):  # it is put off first: the workers may have met the lock too
                if database.job(claim.ref.id).crashes:
                    break
                stop.wait(0.1)
        finally:
            stop.set()
            running.join(15)
    assert database.job(claim.ref.id).crashes == 1
