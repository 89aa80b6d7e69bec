"""Roles of the scheduler, called directly: leader, dispatcher, expirer, reaper."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from app.admission import Submission, SubmissionGroup
from app.config import Settings
from app.scheduler import service
from app.scheduler.dispatching.dispatcher import Dispatcher
from app.scheduler.dispatching.promoter import Promoter
from app.scheduler.maintenance.reaper import Reaper
from app.scheduler.service import Expirer
from models.jobs.admit import admit_group
from models.jobs.claim import JobRef
from models.jobs.ids import new_id
from models.leadership import Leader
from models.presence import Presence, announce
from tasks.retry.decision import CRASH_CAP
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import emptied


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


@pytest.fixture
def broker() -> FakePublisher:
    return FakePublisher()


@pytest.fixture
def dispatcher(database: DatabaseFixture, broker: FakePublisher) -> Dispatcher:
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=10))
    database.keep_present()
    return database.dispatcher(broker)


@pytest.fixture
def reaper(database: DatabaseFixture) -> Reaper:
    return Reaper(database.engine, database.leader, database.types)


def entries(count: int, **fields: Any) -> list[SubmissionGroup]:
    """As many requests of one job each."""
    return [
        SubmissionGroup((Submission(new_id(), 1, "echo", "medium", "{}", **fields),))
        for _ in range(count)
    ]


def credit(database: DatabaseFixture) -> int:
    """Of the express lane."""
    return int(database.query("SELECT coalesce(max(credit), 0) FROM express_lanes")[0][0])


def test_one_of_two_leads_and_the_other_takes_over_when_the_lease_runs_out(
    database: DatabaseFixture,
) -> None:
    other, first = Leader(database.engine, "other"), database.leader.epoch
    other.run_once(0.0)
    assert first and other.epoch is None
    database.execute("UPDATE leaders SET expires_at = now() - interval '1 ms'")
    other.run_once(0.0)
    database.leader.run_once(0.0)
    assert database.leader.epoch is None
    assert other.epoch and other.epoch > first


def test_renewing_keeps_the_epoch_and_resigning_hands_over_at_once(
    database: DatabaseFixture,
) -> None:
    first = database.leader.epoch
    database.leader.run_once(1.0)
    assert first and database.leader.epoch == first
    database.leader.resign()
    other = Leader(database.engine, "other")
    other.run_once(2.0)
    assert other.epoch and other.epoch > first


def test_a_leader_that_was_overtaken_touches_nothing(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher, reaper: Reaper
) -> None:
    database.submit()
    database.submit(execute_at=datetime.now(UTC) + timedelta(milliseconds=1))
    database.start()
    database.expire_leases()
    database.execute("UPDATE leaders SET epoch = epoch + 1")
    before = database.query("SELECT id, status, lease FROM jobs ORDER BY id")
    dispatcher.run_once(10.0)
    promoter = Promoter(database.engine, database.leader, database.pools(), per_second=1000)
    promoter.run_once(10.0)
    assert promoter.run_once(10.5) == 0
    assert reaper.run_once(10.0) == 0
    assert database.query("SELECT id, status, lease FROM jobs ORDER BY id") == before
    assert broker.sent == []
    assert credit(database) == 0


def test_the_dispatcher_is_first_in_first_out_by_priority(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    first, second = database.submit(), database.submit()
    urgent = database.submit(priority=5)
    assert [d.id for d in database.dispatch(room=1)] == [urgent]
    dispatcher.run_once(0.0)
    assert [d.id for d in broker.sent] == [first, second]


def test_the_window_bounds_what_is_at_the_broker(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    for _ in range(50):
        database.submit()
    assert dispatcher.run_once(0.0) == 20, "two rounds of ten slots"
    assert dispatcher.run_once(0.05) == 0
    for sent in broker.sent[:7]:
        database.claim(JobRef(sent.id, sent.lease))
        database.execute("UPDATE jobs SET status = 'succeeded' WHERE id = %s", sent.id)
    assert dispatcher.run_once(0.06) == 7


def test_nothing_is_dispatched_to_a_pool_without_workers(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    database.submit(pool="long")
    database.execute("UPDATE processes SET heartbeat_at = now() - interval '1 minute'")
    database.submit()
    assert dispatcher.run_once(0.0) == 0
    assert broker.sent == []


def test_jobs_stay_in_line_while_the_broker_is_away(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    job_id = database.submit()
    broker.away = True
    assert dispatcher.run_once(0.0) == 0
    job = database.job(job_id)
    assert (job.status, job.lease) == ("queued", 0), "not even marked"
    database.execute("UPDATE leaders SET broker_seen_at = now() - interval '1 hour'")
    broker.away = False
    assert dispatcher.run_once(1.0) == 1
    [lease] = database.query("SELECT now() - broker_seen_at AS seen FROM leaders")
    assert lease.seen < timedelta(minutes=1), "it is known without the next renewal"


def test_while_none_arrives_the_pools_are_counted_a_few_times_a_second(
    database: DatabaseFixture, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    counted: list[float] = []
    count = dispatcher._pools.read
    monkeypatch.setattr(dispatcher._pools, "read", lambda now: [counted.append(now), count(now)][1])
    database.start()  # in flight
    for look in range(1, 11):
        dispatcher.run_once(look * 0.04)
    assert counted == pytest.approx([0.04, 0.32])
    job_id = database.submit()
    assert dispatcher.run_once(0.41) == 1
    assert database.job(job_id).status == "dispatched"


def test_a_publish_that_fails_puts_the_jobs_back_in_line(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    dispatcher.run_once(0.0)
    job_id = database.submit()
    broker.away = True
    assert dispatcher.run_once(0.5) == 0, "found out by publishing"
    job = database.job(job_id)
    assert (job.status, job.lease, job.attempt, job.crashes) == ("queued", 1, 0, 0)
    assert credit(database) == 0, "no express dispatch while the broker is away"
    assert not database.miscounted()


def test_a_late_job_expires_in_the_line(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    job_id = database.submit(not_after=datetime.now(UTC) - timedelta(seconds=1))
    dispatcher.run_once(0.0)
    assert database.job(job_id).status == "expired"
    assert broker.sent == []


def test_a_late_job_expires_where_nobody_dispatches(database: DatabaseFixture) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    late = database.submit(pool="long", not_after=soon)
    asleep = database.submit(execute_at=soon, not_after=soon + timedelta(hours=1))
    fine = database.submit(pool="long", not_after=soon)
    database.execute(
        "UPDATE jobs SET not_after = now() - interval '1 s' WHERE id IN (%s, %s)", late, asleep
    )
    assert Expirer(database.engine, database.leader).run_once(0.0) == 2
    assert [database.job(one).status for one in (late, asleep, fine)] == [
        "expired",
        "expired",
        "queued",
    ]
    assert not database.miscounted()


def test_expired_jobs_do_not_open_the_window(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    admit_group(database.engine, entries(500, not_after=past), express=False)
    admit_group(database.engine, entries(200), express=False)
    for turn in range(100):
        dispatcher.run_once(turn * 0.3)
    assert len(broker.sent) == 20, "two rounds of ten slots, however many expired before"


def test_a_batch_goes_out_by_priority(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    plain, urgent, later = (
        database.submit(),
        database.submit(priority=5),
        database.submit(priority=-1),
    )
    dispatcher.run_once(0.0)
    assert [sent.id for sent in broker.sent] == [urgent, plain, later]


def test_a_lost_message_costs_neither_a_try_nor_a_crash(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    job_id = database.submit()
    database.dispatch()
    database.expire_leases()
    assert reaper.run_once(0.0) == 1
    job = database.job(job_id)
    assert (job.status, job.attempt, job.crashes) == ("queued", 0, 0)


def test_a_lost_worker_counts_as_a_crash_and_five_are_the_end(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    job_id = database.submit()
    for crash in range(1, CRASH_CAP + 1):
        (dispatch,) = database.dispatch()
        database.claim(JobRef(dispatch.id, dispatch.lease))
        database.expire_leases()
        assert reaper.run_once(0.0) == 1
        job = database.job(job_id)
        assert (job.crashes, job.attempt) == (crash, 0)
        assert job.status == {1: "queued", CRASH_CAP: "dead"}.get(crash, "scheduled")
        assert job.error_class == "WORKER_CRASH"
        database.execute("UPDATE jobs SET status = 'queued' WHERE status = 'scheduled'")
    assert database.job(job_id).finished_at is not None
    assert not database.miscounted()
    attempts = database.query("SELECT * FROM attempts WHERE job_id = %s ORDER BY lease", job_id)
    assert [(row.status, row.error_class, row.worker) for row in attempts] == [
        ("queued", "WORKER_CRASH", "w1"),
        *[("scheduled", "WORKER_CRASH", "w1")] * (CRASH_CAP - 2),
        ("dead", "WORKER_CRASH", "w1"),
    ]
    (tally,) = database.query("SELECT name, sum(total) AS total FROM tallies GROUP BY kind, name")
    assert (tally.name, tally.total) == ("1:medium", 3), "the first two may be its neighbours'"


def test_a_lease_that_holds_is_not_reaped(database: DatabaseFixture, reaper: Reaper) -> None:
    database.start()
    database.submit()
    database.dispatch()
    assert reaper.run_once(0.0) == 0


def test_a_worker_lost_to_the_time_limit_of_its_job_is_a_timeout(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    """The last sign of life decides, however late the reaper comes."""
    limit = database.types["echo"].timeout_seconds
    claim = database.start()
    outcomes = []
    for alive, late in ((limit - 1, 3600), (limit + 1, 0), (limit + 1, 0)):
        database.execute(
            "UPDATE jobs SET started_at = now() - make_interval(secs => %s),"
            " lease_expires_at = now() - make_interval(secs => %s) WHERE id = %s",
            alive + 30 + late,
            late + 0.001,
            claim.ref.id,
        )
        assert reaper.run_once(0.0) == 1
        job = database.job(claim.ref.id)
        outcomes.append((job.status, job.error_class, job.attempt, job.crashes))
        database.execute("UPDATE jobs SET status = 'queued' WHERE status = 'scheduled'")
        for dispatch in database.dispatch():
            database.claim(JobRef(dispatch.id, dispatch.lease))
    assert outcomes == [
        ("queued", "WORKER_CRASH", 0, 1),
        ("scheduled", "TIMEOUT", 1, 1),
        ("dead", "TIMEOUT", 2, 1),
    ]


def test_a_lost_run_that_somebody_cancelled_is_cancelled(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    claim = database.start()
    database.execute("UPDATE jobs SET cancel_requested_at = now()")
    database.expire_leases()
    assert reaper.run_once(0.0) == 1
    job = database.job(claim.ref.id)
    assert (job.status, job.crashes) == ("cancelled", 1)
    assert job.finished_at is not None


def test_admitting_the_same_group_again_changes_nothing(database: DatabaseFixture) -> None:
    group = entries(3, candidate="Ada", role="general")
    admit_group(database.engine, group, express=False)
    admit_group(database.engine, group, express=False)
    assert database.query("SELECT count(*) FROM jobs")[0][0] == 3
    assert database.query("SELECT count(*) FROM applications")[0][0] == 3
    assert not database.miscounted()


class Broken:
    """A role that fails by its own fault."""

    def run_once(self, now: float) -> int:
        raise ValueError("no")


def test_a_role_that_fails_does_not_keep_the_others_from_their_work(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "close", lambda: None)
    monkeypatch.setattr(service, "Publisher", lambda *_: broker)
    monkeypatch.setattr(service, "Expirer", lambda *_: Broken())
    database.leader.resign()
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=10))
    database.keep_present()
    job_id = database.submit()
    scheduler = service.SchedulerService(database.engine, Celery(), Settings())
    stop = threading.Event()
    running = threading.Thread(target=scheduler.run, args=(stop,))
    running.start()
    try:
        deadline = time.monotonic() + 30
        while not broker.sent:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        stop.set()
        running.join(10)
    assert [sent.id for sent in broker.sent] == [job_id]
    database.leader.run_once(0.0)
    assert database.leader.epoch, "it handed over at once"
