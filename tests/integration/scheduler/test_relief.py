"""A silent scheduler: one API process keeps the queue moving, bounded, until a leader is back."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import pytest

from app.broker.publish import NOTHING_KNOWN
from app.errors import BrokerUnavailable
from app.policy.fairshare import Grant
from app.scheduler import relief as relief_module
from app.scheduler.relief import Relief
from models.jobs.dispatch import RELIEVE, Dispatch, mark
from models.leadership import LEAD, Leader
from models.presence import Presence, announce
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import emptied


class Broker(FakePublisher):
    """A broker that may also fail in the middle."""

    def __init__(self) -> None:
        super().__init__()
        self.refusing = False

    def publish(
        self,
        dispatches: Sequence[Dispatch],
        workers: int = 1,
        lengths: Mapping[str, float] = NOTHING_KNOWN,
        slots: int = 0,
    ) -> bool:
        if self.refusing:
            raise BrokerUnavailable
        return super().publish(dispatches, workers)

    def close(self) -> None:
        """Nothing is open."""


@pytest.fixture
def database(api_database: DatabaseFixture) -> Iterator[DatabaseFixture]:
    database = emptied(api_database)
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=10))
    database.keep_present()
    yield database
    database.execute("UPDATE tenants SET tier = 'standard'")


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def relief(database: DatabaseFixture, broker: Broker) -> Relief:
    return Relief(database.engine, broker, "api-1", database.types, wait_seconds=0)


def silence(database: DatabaseFixture, seconds: float) -> None:
    """As if the scheduler had given its last sign of life so long ago."""
    database.execute(
        "UPDATE leaders SET expires_at = now() - make_interval(secs => %s - 6)"
        " WHERE role = 'scheduler'",
        seconds,
    )
    database.execute(
        "UPDATE express_lanes SET granted_at = now() - make_interval(secs => %s)", seconds
    )


def queue(
    database: DatabaseFixture, count: int, tenant_id: int = 1, dependency: str = ""
) -> list[str]:
    return [database.submit(tenant_id=tenant_id, dependency=dependency) for _ in range(count)]


def by_tenant(broker: Broker) -> Counter[int]:
    return Counter(dispatch.tenant_id for dispatch in broker.sent)


def test_line_moves_after_a_minute_of_silence_and_not_before(
    database: DatabaseFixture, relief: Relief, broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    job_id = queue(database, 1)[0]
    silence(database, 59)
    assert relief.run_once(0.0) == 0 and not relief.active
    silence(database, 61)
    with caplog.at_level(logging.WARNING):
        assert relief.run_once(1.0) == 1
    assert "without fair share" in caplog.text
    row = database.job(job_id)
    assert (row.status, row.lease) == ("dispatched", 1)
    assert row.lease_expires_at is not None
    assert [(sent.id, sent.lease, sent.queue) for sent in broker.sent] == [(job_id, 1, "medium")]
    assert not database.miscounted()


def test_permission_of_the_last_minute_is_a_sign_of_life(
    database: DatabaseFixture, relief: Relief
) -> None:
    queue(database, 1)
    database.execute("INSERT INTO express_lanes (pool, credit) VALUES ('medium', 0)")
    silence(database, 300)
    database.execute("UPDATE express_lanes SET granted_at = now() - interval '50 seconds'")
    assert relief.run_once(0.0) == 0
    database.execute("UPDATE express_lanes SET granted_at = now() - interval '61 seconds'")
    assert relief.run_once(1.0) == 1


def test_nobody_is_relieved_while_a_leader_lives(database: DatabaseFixture, relief: Relief) -> None:
    queue(database, 1)
    database.execute("INSERT INTO express_lanes VALUES ('medium', 0, now() - interval '1 hour')")
    assert relief.run_once(0.0) == 0


def test_silence_of_a_fresh_database_begins_with_the_first_look(
    database: DatabaseFixture, relief: Relief
) -> None:
    queue(database, 1)
    database.execute("TRUNCATE leaders")
    assert relief.run_once(0.0) == 0
    assert Leader(database.engine, "first").run_once(0.0) == 0
    (leader,) = database.query("SELECT holder, epoch FROM leaders")
    assert leader.holder == "first" and leader.epoch > 0
    database.execute("TRUNCATE leaders")
    assert relief.run_once(1.0) == 0
    silence(database, 61)
    assert relief.run_once(2.0) == 1


def test_process_that_has_just_begun_waits_first(database: DatabaseFixture, broker: Broker) -> None:
    queue(database, 1)
    silence(database, 3600)
    beginner = Relief(database.engine, broker, "api-1", database.types)
    assert beginner.run_once(100.0) == 0
    assert beginner.run_once(109.0) == 0
    assert beginner.run_once(111.0) == 1


def test_one_relief_at_a_time_and_the_next_one_fences_it(
    database: DatabaseFixture, relief: Relief, broker: Broker
) -> None:
    queue(database, 100)
    silence(database, 61)
    second = Relief(database.engine, broker, "api-2", database.types, wait_seconds=0)
    assert relief.run_once(0.0) == 20
    assert second.run_once(0.0) == 0 and not second.active
    database.execute("UPDATE jobs SET status = 'queued' WHERE status = 'dispatched'")
    database.execute(
        "UPDATE leaders SET expires_at = now() - interval '1 ms' WHERE role = 'relief'"
    )
    assert second.run_once(1.0) == 20
    database.execute("UPDATE jobs SET status = 'queued' WHERE status = 'dispatched'")
    frozen = mark(database.engine, "medium", [Grant(1, 5, {"": 5})], 1)
    assert not frozen.dispatches, "it thawed in the middle of a turn"
    assert relief.run_once(1.0) == 0 and not relief.active


def test_window_holds(database: DatabaseFixture, relief: Relief, broker: Broker) -> None:
    queue(database, 50)
    silence(database, 61)
    assert relief.run_once(0.0) == 20, "two rounds of ten slots"
    assert relief.run_once(0.25) == 0
    database.execute(
        "UPDATE jobs SET status = 'running' WHERE status = 'dispatched'",
    )
    assert relief.run_once(0.5) == 0
    (running, *_) = database.query("SELECT id FROM jobs WHERE status = 'running'")
    database.execute("UPDATE jobs SET status = 'succeeded' WHERE id = %s", running.id)
    assert relief.run_once(0.75) == 1
    assert len({dispatch.id for dispatch in broker.sent}) == 21


def test_nobody_takes_all(database: DatabaseFixture, relief: Relief, broker: Broker) -> None:
    queue(database, 60, tenant_id=1)
    queue(database, 4, tenant_id=2)
    queue(database, 3, tenant_id=3, dependency="claude")
    silence(database, 61)
    while relief.run_once(0.0):
        pass
    assert by_tenant(broker) == {1: 13, 2: 4, 3: 3}


def test_every_lane_has_its_turn_however_many_there_are(
    database: DatabaseFixture, relief: Relief, broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(relief_module, "MOST_LANES", 3)
    database.execute("UPDATE processes SET slots = 1")
    database.execute("INSERT INTO circuits VALUES ('down', 'open')")
    for tenant_id in range(1, 11):
        queue(database, 1, tenant_id=tenant_id)
        queue(database, 1, tenant_id=tenant_id, dependency="down")
    silence(database, 61)
    for turn in range(30):
        relief.run_once(turn / 4)
        database.execute("UPDATE jobs SET status = 'cancelled' WHERE status = 'dispatched'")
    assert by_tenant(broker) == dict.fromkeys(range(1, 11), 1)
    assert len(database.query("SELECT 1 FROM jobs WHERE status = 'queued'")) == 10


def test_caps_throttles_and_the_share_of_free_accounts_hold(
    database: DatabaseFixture, relief: Relief, broker: Broker
) -> None:
    database.execute("INSERT INTO tenant_limits VALUES (1, 'medium', 3), (2, 'short', 1)")
    database.execute(
        "INSERT INTO verdicts (kind, tenant_id, pool) VALUES ('throttle', 7, 'medium')"
    )
    database.execute("INSERT INTO tenants (id, name, tier) OVERRIDING SYSTEM VALUE"
                  " VALUES (8, 'free-8', 'free'), (9, 'free-9', 'free')")  # fmt: skip
    for tenant_id in (1, 7, 8, 9):
        queue(database, 9, tenant_id=tenant_id)
    queue(database, 4, tenant_id=2)
    silence(database, 61)
    for turn in range(5):
        relief.run_once(turn / 4)
    assert by_tenant(broker) == {1: 3, 2: 4, 7: 1, 8: 1}
    database.execute("UPDATE jobs SET status = 'cancelled' WHERE status = 'dispatched'")
    database.execute("DELETE FROM tenants WHERE id IN (8, 9)")


def test_suspended_tenant_gets_nothing(
    database: DatabaseFixture, relief: Relief, broker: Broker
) -> None:
    queue(database, 3, tenant_id=1)
    queue(database, 3, tenant_id=2)
    database.execute("UPDATE tenants SET suspended_at = now() WHERE id = 2")
    silence(database, 61)
    relief.run_once(0.0)
    database.execute("UPDATE tenants SET suspended_at = NULL")
    assert by_tenant(broker) == {1: 3}


def test_dependencies_that_must_not_be_called_are_left_alone(
    database: DatabaseFixture, relief: Relief, broker: Broker
) -> None:
    database.execute("INSERT INTO circuits VALUES ('down', 'open'), ('half', 'half_open')")
    database.execute("INSERT INTO circuits VALUES ('up', 'closed')")
    database.execute(
        "INSERT INTO quotas (dependency, requests_per_minute, closed_until)"
        " VALUES ('claude', 6000, now() + interval '1 minute')"
    )
    for dependency in ("down", "half", "claude", "up"):
        queue(database, 3, dependency=dependency)
    silence(database, 61)
    for turn in range(5):
        relief.run_once(float(turn))
    assert {sent.dependency for sent in broker.sent} == {"up"}
    assert len(broker.sent) == 3


def test_quota_sets_the_pace(database: DatabaseFixture, relief: Relief, broker: Broker) -> None:
    database.execute("INSERT INTO quotas (dependency, requests_per_minute) VALUES ('claude', 120)")
    for tenant_id in (1, 2, 3):
        queue(database, 5, tenant_id=tenant_id, dependency="claude")
    silence(database, 61)
    given = [relief.run_once(turn / 4) for turn in range(21)]
    assert given[0] == 0, "no burst at the beginning"
    assert 8 <= sum(given) <= 10 and max(given) == 1, "two a second, for five seconds"


def test_message_that_could_not_be_sent_is_taken_back(
    database: DatabaseFixture, relief: Relief, broker: Broker
) -> None:
    job_id = queue(database, 1)[0]
    silence(database, 61)
    broker.refusing = True
    assert relief.run_once(0.0) == 0
    row = database.job(job_id)
    assert (row.status, row.lease, row.lease_expires_at) == ("queued", 1, None)
    assert not relief.active, "another process may reach the broker"
    broker.refusing = False
    assert relief.run_once(1.0) == 1
    assert database.job(job_id).lease == 2


def test_who_does_not_reach_the_broker_does_not_take_the_place(
    database: DatabaseFixture, relief: Relief, broker: Broker
) -> None:
    queue(database, 1)
    silence(database, 61)
    broker.away = True
    assert relief.run_once(0.0) == 0
    assert not database.query("SELECT 1 FROM leaders WHERE role = 'relief'")
    assert (
        Relief(database.engine, Broker(), "api-2", database.types, wait_seconds=0).run_once(0.0)
        == 1
    )


def test_relief_ends_when_a_leader_is_back(
    database: DatabaseFixture, relief: Relief, caplog: pytest.LogCaptureFixture
) -> None:
    queue(database, 30)
    silence(database, 61)
    assert relief.run_once(0.0) == 20
    back = Leader(database.engine, "back")
    back.run_once(0.0)
    assert back.epoch and back.epoch > (database.leader.epoch or 0)
    database.execute("UPDATE jobs SET status = 'cancelled' WHERE status = 'dispatched'")
    with caplog.at_level(logging.WARNING):
        assert relief.run_once(0.25) == 0
    assert "no longer" in caplog.text and not relief.active
    assert not database.query("SELECT 1 FROM leaders WHERE role = 'relief' AND expires_at > now()")


def take_over(database: DatabaseFixture, name: str = "back") -> int | None:
    leader = Leader(database.engine, name)
    leader.run_once(0.0)
    return leader.epoch


def test_statement_that_meets_a_takeover_marks_nothing(
    database: DatabaseFixture, relief: Relief
) -> None:
    """The leader takes the lease while the relief is in the middle of its turn."""
    queue(database, 30)
    silence(database, 61)
    assert relief.run_once(0.0) == 20
    database.execute("UPDATE jobs SET status = 'cancelled' WHERE status = 'dispatched'")
    told: list[int] = []
    with database.engine.connect() as connection:
        scoped = connection.execution_options(isolation_level="READ COMMITTED")
        with scoped.begin():
            scoped.exec_driver_sql(LEAD, {"holder": "back", "broker_seen": True})
            grants = [Grant(1, 5, {"": 5})]
            turn = threading.Thread(
                target=lambda: told.append(
                    len(mark(database.engine, "medium", grants, 1).dispatches)
                )
            )
            turn.start()
            database.wait_until_waiting()
        turn.join(10)
    assert told == [0]
    assert len(database.query("SELECT 1 FROM jobs WHERE status = 'dispatched'")) == 0


def test_takeover_waits_for_the_statement_of_a_relief(
    database: DatabaseFixture, relief: Relief
) -> None:
    """And then counts what the relief has marked as in flight."""
    queue(database, 30)
    silence(database, 61)
    assert relief.run_once(0.0) == 20
    database.execute("UPDATE jobs SET status = 'cancelled' WHERE status = 'dispatched'")
    epochs: list[int | None] = []
    with database.engine.connect() as connection:
        scoped = connection.execution_options(isolation_level="READ COMMITTED")
        with scoped.begin():
            marked = scoped.exec_driver_sql(
                RELIEVE,
                {
                    "pool": "medium",
                    "slice": "",
                    "epoch": relief._lease.epoch,
                    "tenants": [1],
                    "lanes": [""],
                    "rooms": [5],
                    "most": 5,
                    "jobs": [5],
                },
            ).all()
            takeover = threading.Thread(target=lambda: epochs.append(take_over(database)))
            takeover.start()
            database.wait_until_waiting()
            assert not epochs
        takeover.join(10)
    assert len(marked) == 5 and all(epochs)
    assert len(database.query("SELECT 1 FROM jobs WHERE status = 'dispatched'")) == 5
