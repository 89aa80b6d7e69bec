"""The autoscaler reads the pools and writes what they should have."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Row

from app.policy.scaling import ScalingPolicy
from app.reads import demand
from app.scheduler import autoscaler
from app.scheduler.autoscaler import Autoscaler
from app.stack.autoscale import read_now, read_wanted
from models.jobs.claim import JobRef
from models.jobs.dispatch import Dispatch
from models.leadership import Leader
from models.pools import POOLS
from models.store.prepared import PreparedStatement
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied

POLICIES = dict.fromkeys(POOLS, ScalingPolicy(quiet_seconds=60.0))
ACME, FREEMAN = 71, 72


@pytest.fixture
def database(api_database: DatabaseFixture) -> Iterator[DatabaseFixture]:
    database = emptied(api_database)
    database.execute(
        "INSERT INTO tenants (id, name, tier) VALUES (%s, 'acme', 'enterprise'),"
        " (%s, 'freeman', 'free')",
        ACME,
        FREEMAN,
    )
    yield database
    database.execute("DELETE FROM tenants WHERE id IN (%s, %s)", ACME, FREEMAN)


def living(database: DatabaseFixture, workers: int, pools: str = "medium", slots: int = 10) -> None:
    database.execute("DELETE FROM processes")
    database.execute(
        "INSERT INTO processes (name, kind, pools, slots)"
        " SELECT 'w' || n, 'worker', ARRAY[%s], %s FROM generate_series(1, %s) AS n",
        pools,
        slots,
        workers,
    )


def waiting(database: DatabaseFixture, count: int, age: float = 30.0, **fields: Any) -> None:
    for _ in range(count):
        database.submit(**fields)
    database.execute(
        "UPDATE jobs SET created_at = now() - make_interval(secs => %s),"
        " execute_at = now() - make_interval(secs => %s) WHERE status = 'queued'",
        age,
        age,
    )


def running(database: DatabaseFixture, count: int, **fields: Any) -> list[Dispatch]:
    for _ in range(count):
        database.submit(**fields)
    dispatches = database.dispatch(fields.get("pool", "medium"), count)
    database.claim(*(JobRef(dispatch.id, dispatch.lease) for dispatch in dispatches))
    return dispatches


def make(database: DatabaseFixture, leader: Leader | None = None) -> Autoscaler:
    return Autoscaler(database.engine, leader or database.leader, database.pools(), POLICIES)


def medium(database: DatabaseFixture) -> Row[Any]:
    (row,) = database.query("SELECT * FROM desired_workers WHERE pool = 'medium'")
    return row


def test_a_burst_raises_what_is_wanted_and_says_why(database: DatabaseFixture) -> None:
    living(database, 1)
    running(database, 10)
    waiting(database, 15)
    make(database).run_once(100.0)
    row = medium(database)
    assert (row.workers, row.living, row.depth, row.utilisation) == (3, 1, 15, 1.0)
    assert 30 <= row.oldest_seconds < 40
    assert row.reason.startswith("the oldest of 15 waits 3")
    assert {row.pool for row in database.query("SELECT pool FROM desired_workers")} == set(POOLS)


def test_jobs_at_the_broker_wait_too(database: DatabaseFixture) -> None:
    living(database, 1)
    running(database, 10)
    waiting(database, 5)
    database.dispatch()
    make(database).run_once(100.0)
    row = medium(database)
    assert (row.workers, row.depth) == (2, 5)
    assert row.oldest_seconds >= 30


@pytest.mark.parametrize("parking", ["circuit", "cap", "free slice", "scheduled"])
def test_what_waits_for_something_else_than_a_slot_is_no_demand(
    database: DatabaseFixture, parking: str
) -> None:
    living(database, 1)
    running(database, 1, tenant_id=FREEMAN)
    running(database, 2, tenant_id=ACME)
    running(database, 7)
    pools = database.pools()
    if parking == "circuit":
        database.execute("INSERT INTO circuits VALUES ('claude', 'open')")
        waiting(database, 9, dependency="claude")
    elif parking == "cap":
        database.execute("INSERT INTO tenant_limits VALUES (%s, 'medium', 2)", ACME)
        waiting(database, 9, tenant_id=ACME)
    elif parking == "free slice":
        waiting(database, 9, tenant_id=FREEMAN)
    else:
        database.submit(execute_at=datetime.now(UTC) + timedelta(hours=1))
    pools.queues.refresh(100.0, {})
    Autoscaler(database.engine, database.leader, pools, POLICIES).run_once(100.0)
    assert (medium(database).workers, medium(database).depth) == (1, 0)


def test_what_a_capped_tenant_has_in_held_lanes_hides_nobody(database: DatabaseFixture) -> None:
    living(database, 1)
    database.execute("INSERT INTO circuits VALUES ('claude', 'open')")
    database.execute("INSERT INTO tenant_limits VALUES (%s, 'medium', 2)", ACME)
    running(database, 2, tenant_id=ACME)
    running(database, 8)
    waiting(database, 20, tenant_id=ACME, dependency="claude")
    waiting(database, 3, tenant_id=ACME)
    waiting(database, 7)
    pools = database.pools()
    pools.queues.refresh(100.0, {})
    assert pools.capped("medium") == [ACME]
    Autoscaler(database.engine, database.leader, pools, POLICIES).run_once(100.0)
    assert (medium(database).workers, medium(database).depth) == (2, 7)


def test_free_accounts_with_workers_of_their_own_want_none_of_the_others(
    database: DatabaseFixture,
) -> None:
    living(database, 1)
    running(database, 10)
    waiting(database, 50, tenant_id=FREEMAN)
    waiting(database, 4)
    pools = database.pools()
    pools.queues.refresh(100.0, {})
    scaler = Autoscaler(database.engine, database.leader, pools, POLICIES)
    scaler.run_once(100.0)
    assert medium(database).depth == 54, "none of theirs runs"
    database.execute("INSERT INTO processes (name, kind, pools, slots) VALUES"
                  " ('f1', 'worker', '{medium.free}', 2)")  # fmt: skip
    scaler.run_once(200.0)
    assert medium(database).depth == 4
    database.execute("DELETE FROM jobs WHERE status = 'queued' AND tenant_id <> %s", FREEMAN)
    scaler.run_once(300.0)
    assert medium(database).depth == 0


def test_slices_are_no_part_of_their_pool(database: DatabaseFixture) -> None:
    living(database, 1)
    database.execute(
        "INSERT INTO processes (name, kind, pools, slots)"
        " VALUES ('s1', 'worker', '{medium.reserved.acme}', 30)"
    )
    running(database, 10, tenant_id=ACME)
    database.execute("UPDATE jobs SET slice = 'reserved.acme'")
    make(database).run_once(100.0)
    assert (medium(database).living, medium(database).utilisation) == (1, 0.0)


def test_children_of_prefork_workers_are_parts_of_one(database: DatabaseFixture) -> None:
    living(database, 4, "long", slots=1)
    make(database).run_once(100.0)
    (row,) = database.query("SELECT living, workers FROM desired_workers WHERE pool = 'long'")
    assert tuple(row) == (2, 2)


def test_a_new_leader_goes_on_from_the_last_word(database: DatabaseFixture) -> None:
    living(database, 1)
    scaler = make(database)
    database.execute(
        "INSERT INTO desired_workers (pool, workers, reason, changed_at)"
        " VALUES ('medium', 5, 'burst', now() - interval '1 hour')"
    )
    scaler.run_once(100.0)
    scaler.run_once(159.0)
    assert medium(database).workers == 5
    scaler.run_once(161.0)
    assert (medium(database).workers, medium(database).reason) == (4, "quiet for 61 s")
    (age,) = database.query(
        "SELECT extract(epoch FROM now() - changed_at) FROM desired_workers WHERE pool = 'medium'"
    )[0]
    assert age < 10


@pytest.mark.parametrize(
    ("ago", "jobs", "kept"),
    [(10, 0, False), (10, 3, True), (90, 3, False)],
)
def test_a_wish_from_before_a_restart_is_kept_while_it_is_young_and_jobs_wait(
    database: DatabaseFixture, ago: int, jobs: int, kept: bool
) -> None:
    living(database, 1)
    database.execute(
        "INSERT INTO desired_workers (pool, workers, reason, updated_at)"
        " VALUES ('medium', 5, 'burst', now() - make_interval(secs => %s))",
        ago,
    )
    waiting(database, jobs)
    make(database).run_once(100.0)
    assert (medium(database).workers == 5) is kept


def test_a_scheduler_that_no_longer_leads_writes_nothing(database: DatabaseFixture) -> None:
    deposed = make(database)
    database.execute("UPDATE leaders SET epoch = epoch + 1")
    living(database, 3)
    deposed.run_once(100.0)
    assert not database.query("SELECT * FROM desired_workers")


def test_a_long_turn_is_followed_by_a_long_pause(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(autoscaler, "PAUSE", 1_000_000)
    scaler = make(database)
    scaler.run_once(100.0)
    database.execute("DELETE FROM desired_workers")
    scaler.run_once(101.0)
    assert not database.query("SELECT * FROM desired_workers")
    scaler.run_once(1e9)
    assert database.query("SELECT * FROM desired_workers")


def test_a_line_of_very_many_lanes_is_looked_along_in_turns(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = demand.READ_WAITS.replace(f"LIMIT {demand.MOST_HEADS}", "LIMIT 2")
    monkeypatch.setattr(demand, "PREPARED", PreparedStatement("few_waits", few))
    monkeypatch.setattr(demand, "MOST_HEADS", 2)
    database.execute(
        "INSERT INTO tenants (id, name) SELECT n, 'many' || n FROM generate_series(81, 85) n"
    )
    for tenant_id, age in ((81, 10), (82, 50), (83, 90), (84, 20), (85, 30)):
        for priority in (1, 0):
            job_id = database.submit(tenant_id=tenant_id, priority=priority)
            database.execute(
                "UPDATE jobs SET created_at = now() - make_interval(secs => %s) WHERE id = %s",
                age if priority else 0,
                job_id,
            )
    watch, parked = demand.QueueWatch("medium"), demand.Parked({}, {"medium": [83]})
    with database.engine.connect() as connection:
        ages = [watch.oldest_seconds(connection, parked) or 0.0 for _ in range(12)]
        assert max(ages) < 60, "83 has all it may have"
        assert all(age >= 50 for age in ages[-6:]), "the oldest is never forgotten"
        database.execute("DELETE FROM jobs")
        assert [watch.oldest_seconds(connection, parked) for _ in range(12)][-1] is None


def test_the_stack_is_told_of_workers_and_of_reserved_slots(database: DatabaseFixture) -> None:
    since = read_now(database.engine)
    make(database).run_once(100.0)
    database.execute("UPDATE desired_workers SET reason = 'enough'")
    database.execute(
        "INSERT INTO tenant_limits (tenant_id, pool, in_flight, reserved) VALUES"
        " (%s, 'medium', NULL, 2), (%s, 'gone', NULL, 2), (%s, 'medium', 3, NULL)",
        ACME,
        ACME,
        FREEMAN,
    )
    assert read_wanted(database.engine, since) == {
        "command": "follow",
        "workers": dict.fromkeys(POOLS, 1),
        "reasons": dict.fromkeys(POOLS, "enough"),
        "slices": {"medium.reserved.acme": 2},
    }
    assert read_wanted(database.engine, read_now(database.engine))["workers"] == {}


def test_workers_of_a_tenant_that_is_not_there_are_told_of_once(
    database: DatabaseFixture, caplog: pytest.LogCaptureFixture
) -> None:
    living(database, 1, "medium.reserved.nobody", slots=2)
    pools = database.pools()
    for now in (1.0, 2.0):
        pools.read(now)
        assert not pools.slices("medium")
    assert [record.getMessage() for record in caplog.records] == [
        "workers serve medium.reserved.nobody, but there is no such tenant"
    ]
