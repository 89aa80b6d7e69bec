"""Processes killed for a run's time or resources count against the tenant of the run."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from app.scheduler.maintenance.reaper import Reaper
from app.scheduler.protection.restrictions import Throttles
from models.presence import Presence, announce
from tasks.errors import Cancelled, ResourceViolation, Stop, TimeLimit
from tasks.watchdog import watchdog as watchdog_module
from tasks.watchdog.lost_runs import settle_overdue
from tasks.watchdog.watchdog import Watchdog
from tests.support.database_fixture import DatabaseFixture
from tests.support.one_worker import OneWorker, one_worker


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    return DatabaseFixture(engine)


def kills(database: DatabaseFixture) -> dict[str, int]:
    """What is counted, by tenant and pool."""
    rows = database.query("SELECT name, total, amount FROM tallies WHERE kind = 'crash'")
    assert all(row.total == row.amount for row in rows)
    return {row.name: row.total for row in rows}


def recycled(database: DatabaseFixture) -> dict[str, int]:
    """The same of processes, by pool and reason."""
    rows = database.query("SELECT name, total FROM tallies WHERE kind = 'recycled'")
    return {row.name: row.total for row in rows}


def kill(process: OneWorker, stop: Stop, monkeypatch: pytest.MonkeyPatch) -> None:
    """Begin two runs, and end their process for the first, up to the kill."""
    guilty, _ = (
        process.worker.slots.begin(one) for one in process.worker.slots.claim(process.refs(2))
    )
    monkeypatch.setattr(watchdog_module, "kill_process", lambda *_: None)
    monkeypatch.setattr(watchdog_module, "raise_memory_limit", lambda: None)
    Watchdog(process.worker, ["short"], 5.0)._kill_process_after_writing([(guilty, stop)])


@pytest.mark.parametrize("stop", [TimeLimit(), ResourceViolation("CPU"), Cancelled()])
def test_a_run_for_which_its_process_is_killed_counts_and_its_neighbours_do_not(
    database: DatabaseFixture, stop: Stop, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_worker(database) as process:
        kill(process, stop, monkeypatch)
    (row,) = database.query("SELECT DISTINCT tenant_id, pool FROM jobs")
    assert kills(database) == {f"{row.tenant_id}:{row.pool}": 1}
    assert recycled(database) == {f"{row.pool}:limit": 1}


def test_a_run_that_was_lost_before_its_process_is_killed_does_not_count(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_worker(database) as process:
        lose = "UPDATE jobs SET lease = lease + 1"
        monkeypatch.setattr(
            process.worker.slots, "forbid_claims", lambda: database.execute(lose), raising=True
        )
        kill(process, TimeLimit(), monkeypatch)
    assert kills(database) == {}


def test_a_child_killed_at_its_hard_limit_counts_once_though_reported_twice(
    database: DatabaseFixture,
) -> None:
    late, early = database.start(type="sleep", pool="long"), database.start(pool="long")
    database.execute(
        "UPDATE jobs SET started_at = now() - interval '1 day' WHERE id = %s", late.ref.id
    )
    url = database.engine.url.render_as_string(hide_password=False)
    announce(database.engine, Presence("w1", "worker", parent="its parent"))
    for _ in range(2):
        settle_overdue(url, database.types, "its parent", [late.ref, early.ref])
    assert database.job(early.ref.id).status == "queued"
    assert kills(database) == {"1:long": 1}
    # Not once more as a lost one.
    database.execute("UPDATE processes SET heartbeat_at = now() - interval '1 hour'")
    Reaper(database.engine, database.leader, database.types).run_once(0.0)
    assert recycled(database) == {"long:limit": 1}


def test_a_reaped_run_counts_if_it_was_past_its_time_limit(database: DatabaseFixture) -> None:
    overdue, lost = database.start(type="sleep", pool="long"), database.start(pool="long")
    database.execute("UPDATE jobs SET lease_expires_at = now() - interval '1 second'")
    database.execute(
        "UPDATE jobs SET started_at = now() - interval '1 day' WHERE id = %s", overdue.ref.id
    )
    assert Reaper(database.engine, database.leader, database.types).run_once(0.0) == 2
    assert database.job(overdue.ref.id).error_class == "TIMEOUT"
    assert database.job(lost.ref.id).error_class == "WORKER_CRASH"
    assert kills(database) == {"1:long": 1}


def test_a_tenant_that_keeps_recycling_workers_is_throttled_in_that_pool(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    throttles = Throttles(database.engine, database.leader, limit=2)
    for throttled in (0, 1):
        with one_worker(database) as process:
            kill(process, ResourceViolation("memory"), monkeypatch)
        assert throttles.run_once(0.0) == throttled
    (verdict,) = database.query("SELECT tenant_id, pool, detail FROM verdicts")
    assert (verdict.tenant_id, verdict.detail["crashes"]) == (1, 2)
