"""The express lane: what the scheduler permits, and what admission does by it."""

from __future__ import annotations

import pytest

from app.admission import Admitted, Submission, SubmissionGroup
from app.policy.pool_meter import PoolMeter
from app.scheduler.dispatching.dispatcher import Dispatcher
from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from models.presence import PRESENCE_SECONDS, Presence, announce
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import emptied


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


@pytest.fixture
def dispatcher(database: DatabaseFixture) -> Dispatcher:
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=10))
    database.keep_present()
    return database.dispatcher(FakePublisher())


def group(jobs: int, cap: int | None = None) -> SubmissionGroup:
    """One request of so many jobs."""
    return SubmissionGroup(
        tuple(Submission(new_id(), 1, "echo", "medium", "{}", cap=cap) for _ in range(jobs))
    )


def lane(database: DatabaseFixture, pool: str = "medium") -> int:
    rows = database.query("SELECT credit FROM express_lanes WHERE pool = %s", pool)
    return int(rows[0].credit) if rows else 0


def test_the_express_lane_opens_for_the_free_slots_of_a_pool_without_a_queue(
    database: DatabaseFixture, dispatcher: Dispatcher
) -> None:
    dispatcher.run_once(0.0)
    assert lane(database) == 10
    job_id = database.submit(express=True)
    job = database.job(job_id)
    assert (job.status, job.lease) == ("dispatched", 1)
    assert lane(database) == 9
    assert not database.miscounted()


def test_the_express_lane_is_closed_while_there_is_a_queue(
    database: DatabaseFixture, dispatcher: Dispatcher
) -> None:
    for _ in range(30):
        database.submit()
    dispatcher.run_once(0.0)
    assert lane(database) == 0
    assert database.job(database.submit(express=True)).status == "queued"


def test_the_express_lane_opens_again_in_the_turn_that_sends_the_last_of_a_queue(
    database: DatabaseFixture, dispatcher: Dispatcher
) -> None:
    for _ in range(4):
        database.submit()
    assert dispatcher.run_once(0.0) == 4
    assert lane(database) == 10 - 4
    assert dispatcher.look_within == 0.0, "others may have been queued meanwhile"


def test_a_group_larger_than_the_credit_is_queued_whole(
    database: DatabaseFixture, dispatcher: Dispatcher
) -> None:
    dispatcher.run_once(0.0)
    admitted = admit_group(database.engine, [group(1) for _ in range(11)], express=True)
    assert not any(one.express for one in admitted if isinstance(one, Admitted))
    assert lane(database) == 10


def test_an_old_permission_is_none(database: DatabaseFixture, dispatcher: Dispatcher) -> None:
    dispatcher.run_once(0.0)
    database.execute("UPDATE express_lanes SET granted_at = now() - interval '61 seconds'")
    assert database.job(database.submit(express=True)).status == "queued"


def test_credit_is_also_for_slots_that_soon_will_be_free_but_no_cap_is_passed(
    database: DatabaseFixture, dispatcher: Dispatcher
) -> None:
    dispatcher._pools._meters["medium"] = PoolMeter(PRESENCE_SECONDS, ended_per_second=20.0)
    dispatcher.run_once(0.0)
    assert lane(database) == 10 + 5, "5 jobs end in a quarter of a second"

    def is_sent(cap: int) -> bool:
        [admitted] = admit_group(database.engine, [group(1, cap=cap)], express=True)
        assert isinstance(admitted, Admitted)
        return bool(admitted.express)

    assert [is_sent(cap) for cap in (20, 29, 30)] == [False, False, True], "twice 15"


def test_the_limit_for_caps_follows_what_is_in_flight(
    database: DatabaseFixture, dispatcher: Dispatcher
) -> None:
    dispatcher.run_once(0.0)
    dispatcher._pools._meters["medium"] = PoolMeter(PRESENCE_SECONDS, ended_per_second=40.0)
    for _ in range(12):
        database.submit()
    assert dispatcher.run_once(0.01) == 12
    [row] = database.query("SELECT credit, slots FROM express_lanes WHERE pool = 'medium'")
    assert row.credit > 0 and 12 + row.credit <= row.slots, "10 would be half of a cap of 20"


def test_the_express_lane_stays_closed_while_a_job_is_left_in_the_queue(
    database: DatabaseFixture, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    for _ in range(4):
        database.submit()
    monkeypatch.setattr(dispatcher, "_serve", lambda *_: (3, 0.0))
    dispatcher.run_once(0.0)
    assert lane(database) == 0, "one of four is left"
