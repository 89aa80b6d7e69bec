"""Whose runs are reaped: of workers that are silent, and what a living one has dropped."""

from __future__ import annotations

import time

import pytest

from app.scheduler.maintenance.reaper import FORGET_SECONDS, Reaper
from models.jobs.claim import JobRef
from models.jobs.reap import MOST_WAIT_SECONDS
from models.presence import KEEP_PRESENT, PRESENCE_LOST_SECONDS, Presence, announce
from models.store.session import execute
from tests.support.database_fixture import DatabaseFixture
from tests.support.locks import held_lock

#: Looks that it takes until a worker is silent, one second apart.
LOOKS = int(PRESENCE_LOST_SECONDS) + 1


@pytest.fixture
def reaper(database: DatabaseFixture) -> Reaper:
    return Reaper(database.engine, database.leader, database.types)


def run(database: DatabaseFixture, worker: str = "w1") -> str:
    """A job that ``worker`` runs; its id."""
    job_id = database.submit()
    [dispatch] = [each for each in database.dispatch() if each.id == job_id]
    assert database.claim(JobRef(job_id, dispatch.lease), worker=worker)
    return job_id


def beat(database: DatabaseFixture, worker: str = "w1", renewed: str = "0 seconds") -> None:
    """The worker reports; it has renewed its leases so long ago."""
    [row] = database.query(f"SELECT now() - interval '{renewed}' AS at")
    announce(database.engine, Presence(worker, "worker", ["medium"], 10, renewed_at=row.at))


def test_living_worker_keeps_a_run_whose_lease_it_could_not_renew(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    job_id = run(database)
    beat(database, renewed="20 seconds")
    database.expire_leases()  # a second ago: after it has renewed what it holds
    for second in range(LOOKS + 3):
        execute(database.engine, KEEP_PRESENT, {"names": ["w1"]})
        assert reaper.run_once(second) == 0
    assert database.job(job_id).status == "running"


def test_run_that_a_living_worker_has_dropped_comes_back(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    """Say, the answer to its claim was lost: it renews all that it holds, and not this one."""
    job_id = run(database)
    database.expire_leases()
    beat(database)
    assert reaper.run_once(0.0) == 1
    assert database.job(job_id).status == "queued"


def test_worker_that_renews_nothing_is_not_waited_for_without_end(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    run(database)
    beat(database, renewed="6 minutes")
    database.expire_leases()
    for second in range(int(MOST_WAIT_SECONDS)):
        execute(database.engine, KEEP_PRESENT, {"names": ["w1"]})
        assert reaper.run_once(second) == 0, "the clock may have jumped: time is counted here"
    assert reaper.run_once(MOST_WAIT_SECONDS) == 1


def test_silent_worker_loses_its_runs_long_before_their_leases_end(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    lost, kept = run(database, "w1"), run(database, "w2")
    beat(database, "w1")
    for second in range(LOOKS):
        beat(database, "w2")
        assert reaper.run_once(second) == (second == LOOKS - 1)
    row = database.job(lost)
    assert (row.status, row.crashes, row.attempt) == ("queued", 1, 0)
    assert database.job(kept).status == "running"


def test_worker_that_is_killed_after_its_first_report_is_silent(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    lost = run(database, "w1")
    announce(database.engine, Presence("w1", "worker", ["medium"], 10))  # nothing to renew yet
    for second in range(LOOKS):
        beat(database, "w2")
        reaper.run_once(second)
    assert database.job(lost).status == "queued"


@pytest.mark.parametrize(("silent", "least"), [(True, 28), (False, 0)])
def test_lost_run_is_charged_up_to_the_last_report_of_a_silent_worker(
    database: DatabaseFixture, reaper: Reaper, silent: bool, least: int
) -> None:
    """One that is heard has dropped it, nobody knows when: it is charged up to its renewal."""
    lost = run(database, "w1")
    left = 2 if silent else -2  # seconds of a lease of 30: it was renewed when the run began
    database.execute(
        "UPDATE jobs SET started_at = now() - interval '28 seconds',"
        " lease_expires_at = now() + make_interval(secs => %s)",
        left,
    )
    beat(database, "w1")
    for second in range(LOOKS):
        beat(database, "w2")
        reaper.run_once(second)
    row = database.job(lost)
    assert row.status != "running"
    assert least <= row.slot_seconds < least + 2


def test_worker_that_forgets_to_renew_is_still_heard(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    """Its watchdog reports in place of a heartbeat that is held up."""
    run(database, "w1")
    beat(database, "w1")
    for second in range(3 * LOOKS):
        beat(database, "w2")
        execute(database.engine, KEEP_PRESENT, {"names": ["w1"]})
        assert reaper.run_once(second) == 0


@pytest.mark.parametrize("known", [False, True], ids=["new connection", "prepared before"])
def test_a_report_does_not_wait_for_a_locked_table(database: DatabaseFixture, known: bool) -> None:
    database.engine.dispose()
    if known:
        beat(database, "w1")
    began = time.monotonic()
    with held_lock(database, "LOCK TABLE processes IN ACCESS EXCLUSIVE MODE"):
        assert announce(database.engine, Presence("w1", "worker", ["medium"], slots=10)) is None
    waited = time.monotonic() - began
    assert waited < 4, "a statement may take five seconds, this one half a second"


@pytest.mark.parametrize(
    "sql",
    [
        "SELECT FROM processes WHERE name = 'w1' FOR UPDATE",
        "LOCK TABLE processes IN SHARE MODE",
    ],
    ids=["row", "table"],
)
def test_worker_whose_presence_somebody_has_locked_is_not_silent(
    database: DatabaseFixture, reaper: Reaper, sql: str
) -> None:
    """It cannot report. Its leases decide, and a worker that is alive renews them."""
    lost = run(database, "w1")
    beat(database, "w1")
    with held_lock(database, sql):
        for second in range(2 * LOOKS):
            assert reaper.run_once(second) == 0
    for second in range(2 * LOOKS, 3 * LOOKS - 1):
        assert reaper.run_once(second) == 0, "it gets the time to report"
    for second in range(3 * LOOKS - 1, 4 * LOOKS):
        reaper.run_once(second)
    assert database.job(lost).status == "queued"


def test_process_is_forgotten_after_a_long_silence_only(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    beat(database, "w1"), beat(database, "w2")
    database.execute("UPDATE processes SET heartbeat_at = heartbeat_at - interval '1 hour'")
    reaper.run_once(0.0)
    for second in range(1, int(FORGET_SECONDS) + 1):
        if second % 5 == 0:
            beat(database, "w2")
        assert len(database.query("SELECT FROM processes")) == 2
        reaper.run_once(second)
    [left] = database.query("SELECT name FROM processes")
    assert left.name == "w2"


def test_nobody_is_judged_early_while_all_are_silent(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    run(database, "w1"), run(database, "w2")
    beat(database, "w1"), beat(database, "w2")
    for second in range(2 * LOOKS):
        assert reaper.run_once(second) == 0
    database.expire_leases()
    assert reaper.run_once(2 * LOOKS) == 2, "then the leases decide"


def test_after_a_pause_the_workers_beat_first(database: DatabaseFixture, reaper: Reaper) -> None:
    """The database stood still: all leases and all signs of life are old."""
    ids = [run(database, "w1"), run(database, "w2")]
    beat(database, "w1"), beat(database, "w2")
    assert reaper.run_once(0.0) == 0
    database.expire_leases()
    database.execute(
        "UPDATE processes SET heartbeat_at = heartbeat_at - interval '10 minutes',"
        " renewed_at = renewed_at - interval '10 minutes'"
    )
    for second in range(3):
        assert reaper.run_once(600.0 + second) == 0
    beat(database, "w1", renewed="2 seconds")
    for second in range(3, LOOKS + 3):
        reaper.run_once(600.0 + second)
        execute(database.engine, KEEP_PRESENT, {"names": ["w1"]})
    assert [database.job(job_id).status for job_id in ids] == ["running", "queued"]


def beat_as_before(database: DatabaseFixture, worker: str) -> None:
    """A worker of the version before reports: it says nothing of what it has renewed."""
    announce(database.engine, Presence(worker, "worker", ["medium"], 10))
    database.execute("UPDATE processes SET renewed_at = NULL WHERE name = %s", worker)


def test_worker_of_the_version_before_has_its_leases(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    run(database, "w1")
    beat_as_before(database, "w1")
    for second in range(2 * LOOKS):
        beat(database, "w2")
        assert reaper.run_once(second) == 0, "its reports may be held up by a lock"
    beat_as_before(database, "w1")
    database.expire_leases()
    assert reaper.run_once(2 * LOOKS) == 1, "and it is not known what it has renewed"
