"""The Recorder writes down how the pools do: once a step, whoever leads, and not for ever."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Row, event

from app.console.overview.readings import read_samples
from app.scheduler.maintenance.recorder import (
    COARSE_KEPT_SECONDS,
    COARSE_STEP,
    FINE_KEPT_SECONDS,
    FINE_STEP,
    MOST_HEADS,
    REMOVE_SECONDS,
    REMOVED_AT_ONCE,
    Recorder,
)
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.leadership import Leader
from models.pools import POOLS
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.statement_roles import without_role

DEAD = Ending(JobStatus.DEAD, tries_spent=1, error_class=FailureClass.PERMANENT)
#: As if what is there had been taken so many steps ago.
SHIFT = "UPDATE pool_samples SET at = at - %s * step * interval '1 second'"
#: A sample of some age, with nothing in it.
PUT = """
    INSERT INTO pool_samples
    SELECT %s, 'medium', now() - make_interval(secs => %s) - n * interval '1 second',
           0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0
    FROM generate_series(1, %s) AS n
"""


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


def samples(
    database: DatabaseFixture, step: int = FINE_STEP, pool: str = "medium"
) -> list[Row[Any]]:
    return list(
        database.query(
            "SELECT * FROM pool_samples WHERE step = %s AND pool = %s ORDER BY at", step, pool
        )
    )


def record(database: DatabaseFixture, leader: Leader | None = None) -> int:
    """Take a sample as a Recorder that has just begun."""
    return Recorder(database.engine, leader or database.leader).run_once(0.0)


def test_a_sample_tells_what_came_what_ended_and_what_is_there(database: DatabaseFixture) -> None:
    database.execute(
        "INSERT INTO processes (name, kind, pools, slots, busy, draining) VALUES"
        " ('w1', 'worker', '{medium}', 10, 3, false), ('w2', 'worker', '{medium}', 10, 4, false),"
        " ('w3', 'worker', '{medium}', 10, 9, true), ('w4', 'worker', '{medium.free}', 5, 5, false)"
    )
    died = database.start()
    database.settle(died.ref, DEAD)
    database.start()
    database.submit()
    database.execute("UPDATE jobs SET created_at = now() - interval '40 s' WHERE status = 'queued'")
    assert record(database) == 2 * len(POOLS), "one of each step"
    (row,) = samples(database)
    assert (row.submitted, row.dead, row.running, row.queued) == (3, 1, 1, 1)
    assert (row.busy, row.slots, row.workers) == (7, 20, 2)
    assert 40 <= row.oldest_seconds < 60
    assert row.at.timestamp() % FINE_STEP == 0
    (coarse,) = samples(database, COARSE_STEP)
    assert coarse.at.timestamp() % COARSE_STEP == 0 and coarse.submitted == 3
    (empty,) = samples(database, pool="long")
    assert (empty.submitted, empty.slots, empty.oldest_seconds) == (0, 0, 0.0)


def test_a_replay_is_no_negative_rate(database: DatabaseFixture) -> None:
    died = database.start()
    database.settle(died.ref, DEAD)
    record(database)
    database.execute(SHIFT, 1)
    database.execute("UPDATE jobs SET status = 'queued', replays = 1, ended_xid = NULL")
    record(database)
    before, after = samples(database)
    assert (before.submitted, before.dead) == (1, 1)
    assert (after.submitted, after.dead) == (2, 1), "counted as come again, and still as dead"


def test_jobs_due_outside_of_the_line_are_old_too(database: DatabaseFixture) -> None:
    database.submit(execute_at=datetime.now(UTC) + timedelta(hours=1))
    database.execute("UPDATE jobs SET execute_at = now() - interval '90 s'")
    record(database)
    assert samples(database)[0].oldest_seconds >= 90


def test_with_more_lines_than_one_look_goes_over_the_autoscaler_knows_the_age(
    database: DatabaseFixture,
) -> None:
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
        " SELECT gen_random_uuid(), n, 'echo', 'medium', '{}', 'queued'"
        " FROM generate_series(1, %s) AS n",
        MOST_HEADS + 5,
    )
    database.execute(
        "INSERT INTO desired_workers (pool, workers, reason, oldest_seconds)"
        " VALUES ('medium', 1, '', 70)"
    )
    record(database)
    assert samples(database)[0].oldest_seconds == 70
    database.execute("DELETE FROM jobs WHERE tenant_id > 2")
    database.execute("TRUNCATE pool_samples")
    record(database)
    assert samples(database)[0].oldest_seconds < 60, "all lines were looked at"


def test_a_step_is_written_once_and_the_next_is_waited_for(database: DatabaseFixture) -> None:
    sent: list[str] = []

    def listen(_: Any, __: Any, sql: str, *___: Any) -> None:
        sent.append(without_role(sql))

    recorder = Recorder(database.engine, database.leader)
    assert recorder.run_once(100.0) > 0
    event.listen(database.engine, "before_cursor_execute", listen)
    try:
        assert recorder.run_once(100.0) == 0 and sent == [], "nothing is asked within a step"
        recorder.run_once(100.0 + FINE_STEP)
    finally:
        event.remove(database.engine, "before_cursor_execute", listen)
    assert sent and all(" record_" in sql for sql in sent), "nothing is removed that often"


def test_two_leaders_in_one_step_write_one_sample(database: DatabaseFixture) -> None:
    start = threading.Barrier(2)

    def side(_: int) -> int:
        start.wait()
        return record(database)

    with ThreadPoolExecutor(2) as threads:
        for _ in range(20):
            written = sum(threads.map(side, range(2)))
            rows = database.query("SELECT step, pool, at FROM pool_samples")
            assert written == len(rows) and len(set(rows)) == len(rows)
            # Once more than the pools if a step began in between.
            assert len(rows) in (2 * len(POOLS), 3 * len(POOLS), 4 * len(POOLS))
            database.execute("TRUNCATE pool_samples")


def test_who_was_replaced_writes_and_removes_nothing(database: DatabaseFixture) -> None:
    database.execute(PUT, FINE_STEP, FINE_KEPT_SECONDS + 60, 3)
    old = database.leader
    database.execute("UPDATE leaders SET expires_at = now() - interval '1 second'")
    new = Leader(database.engine, "successor")
    new.run_once(0.0)
    assert record(database, old) == 0
    assert len(samples(database)) == 3
    assert record(database, new) > 0
    assert len(samples(database)) == 1


def test_a_leader_that_dies_between_sample_and_removal_leaves_nothing_for_ever(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    database.execute(PUT, FINE_STEP, FINE_KEPT_SECONDS + 60, 3)
    dying = Recorder(database.engine, database.leader)

    def die(*_: object) -> None:
        raise SystemExit

    monkeypatch.setattr(dying, "_write", die)
    with pytest.raises(SystemExit):
        dying.run_once(0.0)
    assert len(samples(database)) == 4, "the sample stands"
    database.execute(SHIFT, 1)
    successor = Leader(database.engine, "successor")
    database.execute("UPDATE leaders SET expires_at = now() - interval '1 second'")
    successor.run_once(0.0)
    record(database, successor)
    before, after = samples(database)
    assert (after.at - before.at).total_seconds() in (FINE_STEP, 2 * FINE_STEP)


def test_what_is_old_goes_so_many_at_a_time_and_the_rest_stays(database: DatabaseFixture) -> None:
    database.execute(PUT, FINE_STEP, FINE_KEPT_SECONDS + 60, REMOVED_AT_ONCE + 100)
    database.execute(PUT, FINE_STEP, FINE_KEPT_SECONDS - 60, 2)
    database.execute(PUT, COARSE_STEP, COARSE_KEPT_SECONDS + 60, 1)
    database.execute(PUT, COARSE_STEP, COARSE_KEPT_SECONDS - 60, 2)
    recorder = Recorder(database.engine, database.leader)
    recorder.run_once(0.0)
    left = len(samples(database)) + len(samples(database, COARSE_STEP))
    assert left == 101 + 2 + 2 + 2, "old ones but for a thousand, young ones, the new of each step"
    recorder.run_once(REMOVE_SECONDS)
    kept = samples(database)
    assert 3 <= len(kept) <= 4 and len(samples(database, COARSE_STEP)) in (3, 4)


def test_what_a_clock_that_ran_ahead_has_written_is_neither_read_nor_kept(
    database: DatabaseFixture,
) -> None:
    database.execute(PUT, FINE_STEP, -86_400, 3)  # a day ahead
    with database.engine.connect() as connection:
        assert "medium" not in read_samples(connection, FINE_STEP, 900)
    record(database)  # and removes
    assert all(row.at < datetime.now(UTC) + timedelta(minutes=1) for row in samples(database))
    with database.engine.connect() as connection:
        assert "medium" in read_samples(connection, FINE_STEP, 900)
