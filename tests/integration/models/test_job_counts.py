"""Counts as sums and deltas: exact while they are folded, however transactions end."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from sqlalchemy import Connection, Engine

from models.job_counts import FOLD, FOLD_LOCK, TAKE_LOCK, CountFolder, Drawn, Recounter
from tests.support.database_fixture import DatabaseFixture

INSERT = (
    "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
    " VALUES (gen_random_uuid(), 1, 'echo', 'medium', '{}', 'queued')"
)
QUEUED = "SELECT coalesce(sum(queued), 0) FROM job_counts WHERE tenant_id = %s AND pool = 'medium'"


@pytest.fixture(autouse=True)
def fold_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("models.job_counts.WORTH_FOLDING", 1)


@contextmanager
def open_transaction(engine: Engine) -> Iterator[Connection]:
    with engine.connect() as connection:
        scoped = connection.execution_options(isolation_level="READ COMMITTED")
        with scoped.begin():
            yield scoped


def queued(database: DatabaseFixture, tenant_id: int = 1) -> int:
    return int(database.query(QUEUED, tenant_id)[0][0])


def deltas(database: DatabaseFixture) -> int:
    return int(database.query("SELECT count(*) FROM job_count_deltas")[0][0])


def test_a_fold_changes_no_count_and_leaves_one_sum_per_key(database: DatabaseFixture) -> None:
    folder = CountFolder(database.engine)
    for turn in range(3):
        for _ in range(4):
            database.submit()
        folder.run_once(0.0)
        folder.run_once(0.0)
        assert deltas(database) == 0
        assert queued(database) == queued(database, 0) == 4 * (turn + 1)
        assert len(database.query("SELECT * FROM job_count_sums")) == 2
    assert not database.miscounted()


def test_what_a_slow_transaction_counted_before_others_is_not_lost(
    database: DatabaseFixture,
) -> None:
    folder = CountFolder(database.engine)
    database.submit()
    with open_transaction(database.engine) as slow:
        slow.exec_driver_sql(INSERT)  # its delta has a lower number than those that follow
        for _ in range(5):
            database.submit()
            folder.run_once(0.0)
        assert queued(database) == 6
        assert deltas(database) >= 10, "they are behind the open one"
    assert queued(database) == 7
    folder.run_once(0.0)
    assert deltas(database) == 0 and queued(database) == queued(database, 0) == 7
    assert not database.miscounted()


def test_a_transaction_that_was_rolled_back_counts_nothing(database: DatabaseFixture) -> None:
    folder = CountFolder(database.engine)
    with open_transaction(database.engine) as failing:
        failing.exec_driver_sql(INSERT)
        folder.run_once(0.0)
        failing.rollback()
    database.submit()
    folder.run_once(0.0)
    folder.run_once(0.0)
    assert deltas(database) == 0 and queued(database) == 1


def test_an_open_snapshot_does_not_hold_the_fold_back(database: DatabaseFixture) -> None:
    folder = CountFolder(database.engine)
    with database.engine.connect() as connection:
        held = connection.execution_options(isolation_level="REPEATABLE READ")
        with held.begin():
            before = held.exec_driver_sql(QUEUED, (1,)).scalar_one()
            for _ in range(5):
                database.submit()
            folder.run_once(0.0)
            folder.run_once(0.0)
            assert deltas(database) == 0 and queued(database) == 5
            assert held.exec_driver_sql(QUEUED, (1,)).scalar_one() == before == 0


def test_only_one_process_folds_at_a_time(database: DatabaseFixture) -> None:
    folder = CountFolder(database.engine)
    database.submit()
    with open_transaction(database.engine) as other:
        assert other.exec_driver_sql(TAKE_LOCK, {"lock": FOLD_LOCK}).scalar_one()
        folder.run_once(0.0)
        folder.run_once(0.0)
        assert deltas(database) == 2
    folder.run_once(0.0)
    assert deltas(database) == 0 and queued(database) == 1


def test_two_folders_in_turns_and_one_that_begins_late_agree(database: DatabaseFixture) -> None:
    first, second = CountFolder(database.engine), CountFolder(database.engine)
    for _ in range(3):
        for folder in (first, second):
            database.submit()
            folder.run_once(0.0)
    for folder in (first, second, CountFolder(database.engine)):
        folder.run_once(0.0)
        folder.run_once(0.0)
    assert deltas(database) == 0 and queued(database) == queued(database, 0) == 6


def test_numbers_of_another_server_fold_nothing(database: DatabaseFixture) -> None:
    """A failover may lose commits: numbers are drawn again."""
    database.submit()
    asked = {"after": 0, "up_to": 10**9, "server": "2001-01-01 00:00:00+00"}
    with database.engine.connect() as connection:
        connection.exec_driver_sql(FOLD, asked)
    assert deltas(database) == 2 and queued(database) == 1


def test_a_folder_begins_anew_on_another_server(database: DatabaseFixture) -> None:
    folder = CountFolder(database.engine)
    for _ in range(4):
        database.submit()
    [first] = database.query("SELECT min(id) AS id FROM job_count_deltas")
    # It had folded numbers that a failover lost, and that were drawn again meanwhile.
    folder.finished = folder._next = Drawn("another server", first.id + 3, 0)
    folder._folded = first.id + 3
    folder.run_once(0.0)
    folder.run_once(0.0)
    assert deltas(database) == 0 and queued(database) == queued(database, 0) == 4


def test_a_fold_hides_no_delta_that_it_did_not_take(database: DatabaseFixture) -> None:
    database.submit()
    folder = CountFolder(database.engine)
    folder._look()
    asked = {"after": 0, "up_to": folder.finished.delta + 1000, "server": folder.finished.server}
    with database.engine.connect() as connection:
        connection.exec_driver_sql(FOLD, asked)
    assert deltas(database) == 0
    database.submit()
    assert queued(database) == queued(database, 0) == 2


def test_a_recount_corrects_what_is_wrong_and_nothing_else(database: DatabaseFixture) -> None:
    for tenant_id in (1, 2):
        database.submit(tenant_id=tenant_id)
    database.start()
    recounter = Recounter(database.engine)
    recounter.run_once(0.0)
    before = deltas(database)
    database.execute("DELETE FROM job_count_deltas WHERE tenant_id = 1")
    database.execute("UPDATE job_count_deltas SET running = running + 7 WHERE tenant_id = 0")
    assert deltas(database) < before and database.miscounted()
    recounter.run_once(0.0)
    assert not database.miscounted()


def test_counts_stay_exact_while_many_write_and_others_fold(database: DatabaseFixture) -> None:
    stop = threading.Event()
    wrong: list[object] = []

    def write() -> None:
        for number in range(30):
            database.submit(tenant_id=1 + number % 3)
            database.execute(
                "UPDATE jobs SET status = 'cancelled' WHERE id IN (SELECT id FROM jobs"
                " WHERE status = 'queued' ORDER BY id LIMIT 1 FOR UPDATE SKIP LOCKED)"
            )

    def fold() -> None:
        folder = CountFolder(database.engine)
        while not stop.is_set():
            folder.run_once(0.0)
            Recounter(database.engine).run_once(0.0)

    def compare() -> None:
        while not stop.is_set():
            wrong.extend(database.miscounted())

    writers = [threading.Thread(target=write) for _ in range(2)]
    others = [threading.Thread(target=each) for each in (fold, fold, compare)]
    for thread in (*writers, *others):
        thread.start()
    for thread in writers:
        thread.join(60)
    stop.set()
    for thread in others:
        thread.join(60)
    assert not wrong and not database.miscounted()
