"""A snapshot that is held open: no dead row version can be removed, and nobody walks them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Engine

from app.reads.gauges import read_gauges
from app.scheduler.dispatching.dispatcher import Dispatcher
from app.scheduler.dispatching.pool_queues import PoolQueues
from app.scheduler.dispatching.pools import Pools
from app.scheduler.maintenance.snapshot_watch import SnapshotWatch
from models.job_counts import CountFolder
from models.jobs.admit import admit_group
from models.jobs.claim import JobRef, claim_group
from models.jobs.ids import new_id
from models.jobs.settle import Ending, Settlement, settle_group, settle_statement
from models.jobs.states import JobStatus
from models.jobs.submission import Submission, SubmissionGroup
from models.presence import Presence, announce
from models.settings import DatabaseSettings
from models.store.session import open_engine
from tests.support.database_fixture import DatabaseFixture, FakePublisher

#: Each queues, dispatches, claims and settles so many jobs.
CYCLES, JOBS = 160, 20
#: Jobs that have ended.
FILL = """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, ended_xid)
    SELECT gen_random_uuid(), 1, 'echo', 'medium', '{}', 'succeeded', pg_current_xact_id()
    FROM generate_series(1, 10000)
"""
#: Pages that a statement has touched, of which a cached one is a hit.
PAGES = """
    SELECT sum(coalesce(hits, 0) + coalesce(reads, 0))::bigint AS pages
    FROM pg_stat_get_backend_io(pg_backend_pid()) WHERE object = 'relation'
"""
SUCCESS = Ending(JobStatus.SUCCEEDED, tries_spent=1, result="{}")


@contextmanager
def snapshot(engine: Engine) -> Iterator[None]:
    """As a backup holds it."""
    with engine.connect() as connection:
        held = connection.execution_options(isolation_level="REPEATABLE READ")
        with held.begin():
            held.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
            held.exec_driver_sql("SELECT count(*) FROM jobs")
            yield


def pages(database: DatabaseFixture) -> int:
    """Of the pool's only connection."""
    database.query("SELECT pg_stat_force_next_flush()")
    return int(database.query(PAGES)[0].pages)


def dispatcher_of(
    database: DatabaseFixture, broker: FakePublisher, folder: CountFolder | None = None
) -> Dispatcher:
    queues = PoolQueues(database.engine, database.leader, folder)
    return database.dispatcher(broker, Pools(database.engine, queues))


def run_jobs(database: DatabaseFixture, broker: FakePublisher) -> None:
    statement = settle_statement(())
    refs = tuple(JobRef(each.id, each.lease) for each in broker.sent)
    broker.sent.clear()
    claim_group(database.engine, "w1", [refs])
    settle_group(database.engine, statement, "w1", [Settlement(ref, SUCCESS, 0.01) for ref in refs])


def admit(database: DatabaseFixture) -> None:
    jobs = [Submission(new_id(), 1, "echo", "medium", "{}") for _ in range(JOBS)]
    admit_group(database.engine, [SubmissionGroup((each,)) for each in jobs], False)


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    return DatabaseFixture(engine)


@pytest.fixture
def single(database: DatabaseFixture) -> Iterator[DatabaseFixture]:
    """The same database over one connection only, whose pages are counted.

    The tables of a test are so small that the planner would sometimes read one from end to end.
    """
    database.execute(f"ALTER DATABASE {database.engine.url.database} SET enable_seqscan = off")
    url = database.engine.url.render_as_string(hide_password=False)
    opened = open_engine(DatabaseSettings(database_url=url, db_pool_size=1))
    yield DatabaseFixture(opened)
    opened.dispose()


def test_a_dispatch_costs_the_same_however_many_versions_are_dead(
    database: DatabaseFixture, single: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As at a higher rate: the tables grow, and plans are made anew meanwhile.
    monkeypatch.setattr("models.job_counts.WORTH_FOLDING", 1)
    monkeypatch.setattr("models.store.prepared.KEEP_SECONDS", 0.1)
    broker = FakePublisher()
    folds = CountFolder(database.engine)
    dispatcher = dispatcher_of(single, broker, folds)
    database.execute(FILL)
    touched: list[int] = []
    with snapshot(database.engine):
        for cycle in range(CYCLES):
            database.leader.run_once(0.0)
            announce(database.engine, Presence("w1", "worker", ["medium"], slots=100))
            admit(database)
            folds.run_once(0.0)
            before = pages(single)
            dispatcher.run_once(cycle * 0.04)
            touched.append(pages(single) - before)
            assert len(broker.sent) == JOBS
            run_jobs(database, broker)
    assert not database.miscounted()
    # From here on no index gets another level.
    first, last = (sorted(part)[len(part) // 2] for part in (touched[40:60], touched[-20:]))
    assert last <= 1.3 * first, f"{first} pages at first, {last} after {CYCLES * JOBS} jobs"


def test_an_arrival_of_a_slow_transaction_is_not_skipped(database: DatabaseFixture) -> None:
    """Its number is lower than those that were taken before it was committed."""
    broker = FakePublisher()
    folds = CountFolder(database.engine)
    dispatcher = dispatcher_of(database, broker, folds)
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=100))
    database.submit()  # the first change of a key makes others wait for its commit
    dispatcher.run_once(0.0)
    broker.sent.clear()
    with database.engine.connect() as connection:
        slow = connection.execution_options(isolation_level="READ COMMITTED")
        with slow.begin():
            slow.exec_driver_sql(
                "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
                " VALUES (gen_random_uuid(), 7, 'echo', 'medium', '{}', 'queued')"
            )
            for turn in range(4):
                database.submit()
                folds.run_once(0.0)
                dispatcher.run_once(0.1 + turn / 10)
            assert len(broker.sent) == 4
    folds.run_once(0.0)
    dispatcher.run_once(0.6)
    assert len(broker.sent) == 5


def test_jobs_that_come_before_the_head_of_their_lane_are_found_at_once(
    database: DatabaseFixture,
) -> None:
    """A higher priority, an older id, and a job that was handed back."""
    broker = FakePublisher()
    dispatcher = dispatcher_of(database, broker)
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=4))
    early = new_id()
    for _ in range(3):
        database.submit()
    dispatcher.run_once(0.0)
    assert len(broker.sent) == 3
    handed_back = broker.sent[0]
    urgent = database.submit(priority=5)
    database.submit(id=early)
    database.execute("UPDATE jobs SET status = 'queued' WHERE id = %s", handed_back.id)
    broker.sent.clear()
    dispatcher.run_once(0.1)
    assert [each.id for each in broker.sent] == [urgent, early, handed_back.id]


def test_an_operator_is_told_of_an_old_snapshot(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("app.scheduler.maintenance.snapshot_watch.LONG_SECONDS", 0.05)
    watch = SnapshotWatch(database.engine, database.leader)
    with caplog.at_level("WARNING"):
        watch.run_once(0.0)
        with snapshot(database.engine):
            time.sleep(0.1)
            with database.engine.connect() as connection:
                readings = read_gauges(connection)
            watch.run_once(0.0)
            watch.run_once(0.0)
    assert 0.1 <= readings.snapshot_seconds < 60
    assert len(caplog.records) == 1, "once"
    assert "a transaction has been open" in caplog.text
