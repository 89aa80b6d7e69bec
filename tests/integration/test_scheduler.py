"""Roles of the scheduler, called directly: leader, dispatcher, expirer, reaper, express lane."""

from __future__ import annotations

import threading
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from app.admission import Admitted, Submission, SubmissionGroup
from app.config import Settings
from app.scheduler import service
from app.scheduler.dispatching.dispatcher import Dispatcher
from app.scheduler.dispatching.promoter import Promoter
from app.scheduler.maintenance.expirer import Expirer
from app.scheduler.maintenance.reaper import Reaper
from models.jobs.admit import admit_group
from models.jobs.claim import JobRef
from models.jobs.ids import new_id
from models.leadership import Leader
from models.presence import Presence, announce
from tasks.retry import CRASH_CAP
from tests.integration.emptied import emptied
from tests.integration.house import FakePublisher, House


@pytest.fixture
def house(api_house: House) -> House:
    return emptied(api_house)


@pytest.fixture
def broker() -> FakePublisher:
    return FakePublisher()


@pytest.fixture
def dispatcher(house: House, broker: FakePublisher) -> Dispatcher:
    announce(house.engine, Presence("w1", "worker", ["medium"], slots=10))
    return house.dispatcher(broker)


@pytest.fixture
def reaper(house: House) -> Reaper:
    return Reaper(house.engine, house.leader, house.types)


def entries(count: int, **fields: Any) -> list[SubmissionGroup]:
    """As many requests of one job each."""
    return [
        SubmissionGroup((Submission(new_id(), 1, "echo", "medium", "{}", **fields),))
        for _ in range(count)
    ]


def lane(house: House, pool: str = "medium") -> int:
    rows = house.query("SELECT credit FROM express_lanes WHERE pool = %s", pool)
    return int(rows[0].credit) if rows else 0


def test_one_of_two_leads_and_the_other_takes_over_when_the_lease_runs_out(house: House) -> None:
    other = Leader(house.engine, "other")
    other.run_once(0.0)
    assert (house.leader.epoch, other.epoch) == (1, None)
    house.execute("UPDATE leaders SET expires_at = now() - interval '1 ms'")
    other.run_once(0.0)
    house.leader.run_once(0.0)
    assert (house.leader.epoch, other.epoch) == (None, 2)


def test_renewing_keeps_the_epoch_and_resigning_hands_over_at_once(house: House) -> None:
    house.leader.run_once(1.0)
    assert house.leader.epoch == 1
    house.leader.resign()
    other = Leader(house.engine, "other")
    other.run_once(2.0)
    assert other.epoch == 2


def test_a_leader_that_was_overtaken_touches_nothing(
    house: House, dispatcher: Dispatcher, broker: FakePublisher, reaper: Reaper
) -> None:
    house.submit()
    house.submit(execute_at=datetime.now(UTC) + timedelta(milliseconds=1))
    house.start()
    house.expire_leases()
    house.execute("UPDATE leaders SET epoch = epoch + 1")
    before = house.query("SELECT id, status, lease FROM jobs ORDER BY id")
    dispatcher.run_once(10.0)
    promoter = Promoter(house.engine, house.leader, house.pools(), per_second=1000)
    promoter.run_once(10.0)
    assert promoter.run_once(10.5) == 0
    assert reaper.run_once(10.0) == 0
    assert house.query("SELECT id, status, lease FROM jobs ORDER BY id") == before
    assert broker.sent == []
    assert lane(house) == 0


def test_the_dispatcher_is_first_in_first_out_by_priority(
    house: House, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    first, second = house.submit(), house.submit()
    urgent = house.submit(priority=5)
    assert [d.id for d in house.dispatch(room=1)] == [urgent]
    dispatcher.run_once(0.0)
    assert [d.id for d in broker.sent] == [first, second]


def test_the_window_bounds_what_is_at_the_broker(
    house: House, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    for _ in range(50):
        house.submit()
    assert dispatcher.run_once(0.0) == 20, "two rounds of ten slots"
    assert dispatcher.run_once(0.05) == 0
    for sent in broker.sent[:7]:
        house.claim(JobRef(sent.id, sent.lease))
        house.execute("UPDATE jobs SET status = 'succeeded' WHERE id = %s", sent.id)
    assert dispatcher.run_once(0.06) == 7


def test_nothing_is_dispatched_to_a_pool_without_workers(
    house: House, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    house.submit(pool="long")
    house.execute("UPDATE processes SET heartbeat_at = now() - interval '1 minute'")
    house.submit()
    assert dispatcher.run_once(0.0) == 0
    assert broker.sent == []


def test_jobs_stay_in_line_while_the_broker_is_away(
    house: House, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    job_id = house.submit()
    broker.away = True
    assert dispatcher.run_once(0.0) == 0
    job = house.job(job_id)
    assert (job.status, job.lease) == ("queued", 0), "not even marked"
    broker.away = False
    assert dispatcher.run_once(1.0) == 1


def test_a_publish_that_fails_puts_the_jobs_back_in_line(
    house: House, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    dispatcher.run_once(0.0)
    job_id = house.submit()
    broker.away = True
    assert dispatcher.run_once(0.5) == 0, "found out by publishing"
    job = house.job(job_id)
    assert (job.status, job.lease, job.attempt, job.crashes) == ("queued", 1, 0, 0)
    assert lane(house) == 0, "no express dispatch while the broker is away"
    assert not house.miscounted()


def test_a_late_job_expires_in_the_line(
    house: House, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    job_id = house.submit(not_after=datetime.now(UTC) - timedelta(seconds=1))
    dispatcher.run_once(0.0)
    assert house.job(job_id).status == "expired"
    assert broker.sent == []


def test_a_late_job_expires_where_nobody_dispatches(house: House) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    late = house.submit(pool="long", not_after=soon)
    asleep = house.submit(execute_at=soon, not_after=soon + timedelta(hours=1))
    fine = house.submit(pool="long", not_after=soon)
    house.execute(
        "UPDATE jobs SET not_after = now() - interval '1 s' WHERE id IN (%s, %s)", late, asleep
    )
    assert Expirer(house.engine, house.leader).run_once(0.0) == 2
    assert [house.job(one).status for one in (late, asleep, fine)] == [
        "expired",
        "expired",
        "queued",
    ]
    assert not house.miscounted()


def test_expired_jobs_do_not_open_the_window(
    house: House, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    past = datetime.now(UTC) - timedelta(seconds=1)
    admit_group(house.engine, entries(500, not_after=past), express=False)
    admit_group(house.engine, entries(200), express=False)
    for turn in range(100):
        dispatcher.run_once(turn * 0.3)
    assert len(broker.sent) == 20, "two rounds of ten slots, however many expired before"


def test_a_batch_goes_out_by_priority(
    house: House, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    plain, urgent, later = house.submit(), house.submit(priority=5), house.submit(priority=-1)
    dispatcher.run_once(0.0)
    assert [sent.id for sent in broker.sent] == [urgent, plain, later]


def test_a_lost_message_costs_neither_a_try_nor_a_crash(house: House, reaper: Reaper) -> None:
    job_id = house.submit()
    house.dispatch()
    house.expire_leases()
    assert reaper.run_once(0.0) == 1
    job = house.job(job_id)
    assert (job.status, job.attempt, job.crashes) == ("queued", 0, 0)


def test_a_lost_worker_counts_as_a_crash_and_five_are_the_end(house: House, reaper: Reaper) -> None:
    job_id = house.submit()
    for crash in range(1, CRASH_CAP + 1):
        (dispatch,) = house.dispatch()
        house.claim(JobRef(dispatch.id, dispatch.lease))
        house.expire_leases()
        assert reaper.run_once(0.0) == 1
        job = house.job(job_id)
        assert (job.crashes, job.attempt) == (crash, 0)
        assert job.status == {1: "queued", CRASH_CAP: "dead"}.get(crash, "scheduled")
        assert job.error_class == "WORKER_CRASH"
        house.execute("UPDATE jobs SET status = 'queued' WHERE status = 'scheduled'")
    assert house.job(job_id).finished_at is not None
    assert not house.miscounted()
    attempts = house.query("SELECT * FROM attempts WHERE job_id = %s ORDER BY lease", job_id)
    assert [(row.status, row.error_class, row.worker) for row in attempts] == [
        ("queued", "WORKER_CRASH", "w1"),
        *[("scheduled", "WORKER_CRASH", "w1")] * (CRASH_CAP - 2),
        ("dead", "WORKER_CRASH", "w1"),
    ]
    (tally,) = house.query("SELECT name, sum(total) AS total FROM tallies GROUP BY kind, name")
    assert (tally.name, tally.total) == ("1:medium", 3), "the first two may be its neighbours'"


def test_a_lease_that_holds_is_not_reaped(house: House, reaper: Reaper) -> None:
    house.start()
    house.submit()
    house.dispatch()
    assert reaper.run_once(0.0) == 0


def test_a_worker_lost_to_the_time_limit_of_its_job_is_a_timeout(
    house: House, reaper: Reaper
) -> None:
    """The last sign of life decides, however late the reaper comes."""
    limit = house.types["echo"].timeout_seconds
    claim = house.start()
    outcomes = []
    for alive, late in ((limit - 1, 3600), (limit + 1, 0), (limit + 1, 0)):
        house.execute(
            "UPDATE jobs SET started_at = now() - make_interval(secs => %s),"
            " lease_expires_at = now() - make_interval(secs => %s) WHERE id = %s",
            alive + 30 + late,
            late + 0.001,
            claim.ref.id,
        )
        assert reaper.run_once(0.0) == 1
        job = house.job(claim.ref.id)
        outcomes.append((job.status, job.error_class, job.attempt, job.crashes))
        house.execute("UPDATE jobs SET status = 'queued' WHERE status = 'scheduled'")
        for dispatch in house.dispatch():
            house.claim(JobRef(dispatch.id, dispatch.lease))
    assert outcomes == [
        ("queued", "WORKER_CRASH", 0, 1),
        ("scheduled", "TIMEOUT", 1, 1),
        ("dead", "TIMEOUT", 2, 1),
    ]


def test_a_lost_run_that_somebody_cancelled_is_cancelled(house: House, reaper: Reaper) -> None:
    claim = house.start()
    house.execute("UPDATE jobs SET cancel_requested_at = now()")
    house.expire_leases()
    assert reaper.run_once(0.0) == 1
    job = house.job(claim.ref.id)
    assert (job.status, job.crashes) == ("cancelled", 1)
    assert job.finished_at is not None


def test_the_express_lane_opens_for_the_free_slots_of_a_pool_without_a_line(
    house: House, dispatcher: Dispatcher
) -> None:
    dispatcher.run_once(0.0)
    assert lane(house) == 10
    job_id = house.submit(express=True)
    job = house.job(job_id)
    assert (job.status, job.lease) == ("dispatched", 1)
    assert lane(house) == 9
    assert not house.miscounted()


def test_the_express_lane_is_closed_while_there_is_a_line(
    house: House, dispatcher: Dispatcher
) -> None:
    for _ in range(30):
        house.submit()
    dispatcher.run_once(0.0)
    assert lane(house) == 0
    assert house.job(house.submit(express=True)).status == "queued"


def test_a_group_larger_than_the_credit_goes_to_the_line_whole(
    house: House, dispatcher: Dispatcher
) -> None:
    dispatcher.run_once(0.0)
    admitted = admit_group(house.engine, entries(11), express=True)
    assert not any(one.express for one in admitted if isinstance(one, Admitted))
    assert lane(house) == 10


def test_an_old_permission_is_none(house: House, dispatcher: Dispatcher) -> None:
    dispatcher.run_once(0.0)
    house.execute("UPDATE express_lanes SET granted_at = now() - interval '61 seconds'")
    assert house.job(house.submit(express=True)).status == "queued"


def test_admitting_the_same_group_again_changes_nothing(house: House) -> None:
    group = entries(3, candidate="Ada", role="general")
    admit_group(house.engine, group, express=False)
    admit_group(house.engine, group, express=False)
    assert house.query("SELECT count(*) FROM jobs")[0][0] == 3
    assert house.query("SELECT count(*) FROM applications")[0][0] == 3
    assert not house.miscounted()


class Broken:
    """A role that fails by its own fault."""

    def run_once(self, now: float) -> int:
        raise ValueError("no")


def test_a_role_that_fails_does_not_keep_the_others_from_their_work(
    house: House, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(broker, "close", lambda: None)
    monkeypatch.setattr(service, "Publisher", lambda *_: broker)
    monkeypatch.setattr(service, "Expirer", lambda *_: Broken())
    house.leader.resign()
    announce(house.engine, Presence("w1", "worker", ["medium"], slots=10))
    job_id = house.submit()
    scheduler = service.SchedulerService(house.engine, Celery(), Settings())
    stop = threading.Event()
    running = threading.Thread(target=scheduler.run, args=(stop,))
    running.start()
    try:
        deadline = time.monotonic() + 10
        while not broker.sent:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    finally:
        stop.set()
        running.join(10)
    assert [sent.id for sent in broker.sent] == [job_id]
    house.leader.run_once(0.0)
    assert house.leader.epoch, "it handed over at once"
