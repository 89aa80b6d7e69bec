"""Roles of the scheduler, called directly: leader, promoter, dispatcher, reaper."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine

from app.admission.admit import admit_group
from app.admission.submission import Submission
from app.scheduler.dispatcher import Dispatcher
from app.scheduler.expirer import Expirer
from app.scheduler.leader import Leader
from app.scheduler.promoter import Promoter
from app.scheduler.reaper import CRASH_CAP, Reaper
from models.ids import new_id
from models.presence import Presence, announce
from tasks.runtime.claim import JobRef
from tests.integration.house import FakePublisher, House


@pytest.fixture
def house(engine: Engine) -> House:
    return House(engine)


@pytest.fixture
def broker() -> FakePublisher:
    return FakePublisher()


@pytest.fixture
def dispatcher(house: House, broker: FakePublisher) -> Dispatcher:
    announce(house.engine, Presence("w1", "worker", ["medium"], slots=10))
    return Dispatcher(house.engine, house.leader, broker)


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
    house: House, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    house.submit()
    house.submit(execute_at=datetime.now(UTC) + timedelta(milliseconds=1))
    house.start()
    house.expire_leases()
    house.execute("UPDATE leaders SET epoch = epoch + 1")
    before = house.query("SELECT id, status, lease FROM jobs ORDER BY id")
    dispatcher.run_once(10.0)
    Promoter(house.engine, house.leader).run_once(10.0)
    Reaper(house.engine, house.leader).run_once(10.0)
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
    group = [Submission(new_id(), 1, "echo", "medium", "{}", not_after=past) for _ in range(500)]
    admit_group(house.engine, group, express=False)
    group = [Submission(new_id(), 1, "echo", "medium", "{}") for _ in range(200)]
    admit_group(house.engine, group, express=False)
    for turn in range(100):
        dispatcher.run_once(turn * 0.3)
    assert len(broker.sent) == 20, "two rounds of ten slots, however many expired before"


def test_a_batch_goes_out_by_priority(
    house: House, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    plain, urgent, later = house.submit(), house.submit(priority=5), house.submit(priority=-1)
    dispatcher.run_once(0.0)
    assert [sent.id for sent in broker.sent] == [urgent, plain, later]


def test_due_jobs_are_promoted_and_others_are_not(house: House) -> None:
    soon = datetime.now(UTC) + timedelta(hours=1)
    due, later = house.submit(execute_at=soon), house.submit(execute_at=soon)
    assert house.job(due).status == "scheduled"
    house.execute("UPDATE jobs SET execute_at = now() WHERE id = %s", due)
    assert Promoter(house.engine, house.leader).run_once(0.0) == 1
    assert house.job(due).status == "queued"
    assert house.job(later).status == "scheduled"


def test_a_lost_message_costs_neither_a_try_nor_a_crash(house: House) -> None:
    job_id = house.submit()
    house.dispatch()
    house.expire_leases()
    assert Reaper(house.engine, house.leader).run_once(0.0) == 1
    job = house.job(job_id)
    assert (job.status, job.attempt, job.crashes) == ("queued", 0, 0)


def test_a_lost_worker_counts_as_a_crash_and_five_are_the_end(house: House) -> None:
    job_id = house.submit()
    reaper = Reaper(house.engine, house.leader)
    for crash in range(1, CRASH_CAP + 1):
        (dispatch,) = house.dispatch()
        house.claim(JobRef(dispatch.id, dispatch.lease))
        house.expire_leases()
        assert reaper.run_once(0.0) == 1
        job = house.job(job_id)
        assert (job.crashes, job.attempt) == (crash, 0)
        assert job.status == ("dead" if crash == CRASH_CAP else "queued")
        assert job.error_class == "WORKER_CRASH"
    assert house.job(job_id).finished_at is not None
    assert not house.miscounted()


def test_a_lease_that_holds_is_not_reaped(house: House) -> None:
    house.start()
    house.submit()
    house.dispatch()
    assert Reaper(house.engine, house.leader).run_once(0.0) == 0


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
    group = [Submission(new_id(), 1, "echo", "medium", "{}") for _ in range(11)]
    assert admit_group(house.engine, group, express=True) == [False] * 11
    assert lane(house) == 10


def test_an_old_permission_is_none(house: House, dispatcher: Dispatcher) -> None:
    dispatcher.run_once(0.0)
    house.execute("UPDATE express_lanes SET granted_at = now() - interval '61 seconds'")
    assert house.job(house.submit(express=True)).status == "queued"


def test_admitting_the_same_group_again_changes_nothing(house: House) -> None:
    group = [
        Submission(new_id(), 1, "echo", "medium", "{}", candidate="Ada", role="general")
        for _ in range(3)
    ]
    admit_group(house.engine, group, express=False)
    admit_group(house.engine, group, express=False)
    assert house.query("SELECT count(*) FROM jobs")[0][0] == 3
    assert house.query("SELECT count(*) FROM applications")[0][0] == 3
    assert not house.miscounted()
