"""What the dispatcher leaves in the queue: lanes of broken dependencies, tenants that crash."""

from __future__ import annotations

from datetime import timedelta

import pytest
from sqlalchemy.exc import DBAPIError

from app.scheduler.dispatching import pool_queues
from app.scheduler.dispatching.dispatcher import Dispatcher
from app.scheduler.dispatching.pool_queues import PoolQueues
from app.scheduler.dispatching.pools import Pools
from app.tenants.changes import create_tenant
from app.tenants.terms import Change
from models.jobs.claim import JobRef
from models.jobs.ids import new_id
from models.presence import Presence, announce
from tasks.retry.circuit import PROBES
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import emptied


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    database = emptied(api_database)
    announce(database.engine, Presence("w1", "worker", ["medium", "long"], slots=10))
    database.keep_present()
    return database


@pytest.fixture
def broker() -> FakePublisher:
    return FakePublisher()


@pytest.fixture
def dispatcher(database: DatabaseFixture, broker: FakePublisher) -> Dispatcher:
    return database.dispatcher(broker)


def set_circuit(database: DatabaseFixture, state: str, age: str = "1 minute") -> None:
    database.execute(
        "INSERT INTO circuits VALUES ('claude', %s, now() - %s::interval)"
        " ON CONFLICT (dependency) DO UPDATE SET state = excluded.state,"
        " changed_at = excluded.changed_at",
        state,
        age,
    )


def throttle(database: DatabaseFixture, tenant_id: int, pool: str = "medium") -> None:
    database.execute(
        "INSERT INTO verdicts (kind, tenant_id, pool) VALUES ('throttle', %s, %s)", tenant_id, pool
    )


def credit(database: DatabaseFixture) -> int:
    rows = database.query("SELECT credit FROM express_lanes WHERE pool = 'medium'")
    return int(rows[0].credit)


def test_priority_and_age_order_the_line_across_its_lanes(database: DatabaseFixture) -> None:
    plain, asking = database.submit(), database.submit(dependency="claude")
    urgent = database.submit(dependency="maps", priority=5)
    last = database.submit()
    assert [d.id for d in database.dispatch(room=3)] == [urgent, plain, asking]
    assert [d.id for d in database.dispatch(room=3)] == [last]


def test_a_job_that_somebody_else_holds_costs_neither_room_nor_time(
    database: DatabaseFixture,
) -> None:
    held = [database.submit(dependency="claude"), database.submit(dependency="claude")]
    free = [database.submit(dependency="claude"), database.submit()]
    with database.engine.connect() as other:
        scoped = other.execution_options(isolation_level="READ COMMITTED")
        with scoped.begin():
            lock = "SELECT FROM jobs WHERE id = ANY (%s::uuid[]) FOR UPDATE"
            scoped.exec_driver_sql(lock, (held,))
            assert [d.id for d in database.dispatch(room=2)] == free
    assert [d.id for d in database.dispatch(room=2)] == held


def test_an_open_circuit_parks_its_lane_and_nothing_else(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    parked = [database.submit(dependency="claude", priority=9) for _ in range(30)]
    plain = database.submit()
    set_circuit(database, "open")
    dispatcher.run_once(0.0)
    assert [d.id for d in broker.sent] == [plain]
    assert {database.job(one).status for one in parked} == {"queued"}
    dispatcher.run_once(0.1)
    assert credit(database) == 9, "what is parked makes no queue"
    assert database.job(database.submit(express=True, dependency="claude")).status == "queued"
    assert database.job(database.submit(express=True)).status == "dispatched"


def test_a_half_open_circuit_lets_probes_through_over_all_pools(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    for pool in ("medium", "long"):
        for _ in range(5):
            database.submit(dependency="claude", pool=pool)
    set_circuit(database, "half_open", age="1 second")
    assert dispatcher.run_once(0.0) == 0, "workers have not heard of it yet"
    set_circuit(database, "half_open")
    assert dispatcher.run_once(0.1) == PROBES
    assert dispatcher.run_once(0.2) == 0
    probe = broker.sent[0]
    database.claim(JobRef(probe.id, probe.lease))
    assert dispatcher.run_once(0.3) == 0, "it still runs"
    database.execute("UPDATE jobs SET status = 'succeeded' WHERE id = %s", probe.id)
    assert dispatcher.run_once(0.4) == 1


def test_a_run_from_before_the_change_is_no_probe(
    database: DatabaseFixture, dispatcher: Dispatcher
) -> None:
    for _ in range(PROBES):
        database.start(dependency="claude")
    database.execute("UPDATE jobs SET dispatched_at = now() - interval '1 hour'")
    database.submit(dependency="claude")
    set_circuit(database, "half_open")
    assert dispatcher.run_once(0.0) == 1


def test_a_throttled_tenant_has_one_job_in_flight_and_delays_nobody(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    his = [database.submit(tenant_id=7, priority=9) for _ in range(25)]
    others = [database.submit() for _ in range(5)]
    throttle(database, 7)
    dispatcher.run_once(0.0)
    assert sorted(d.id for d in broker.sent) == sorted([his[0], *others])
    assert dispatcher.run_once(0.1) == 0
    assert credit(database) == 4, "his queue is not the pool's"
    assert database.job(database.submit(express=True, tenant_id=7)).status == "queued"
    assert database.job(database.submit(express=True)).status == "dispatched"
    database.claim(JobRef(his[0], 1))
    database.execute("UPDATE jobs SET status = 'dead' WHERE id = %s", his[0])
    assert dispatcher.run_once(0.2) == 1
    assert broker.sent[-1].id == his[1]


@pytest.mark.parametrize("change", ["throttle", "cap"])
def test_a_change_that_could_not_be_read_is_read_again(
    database: DatabaseFixture, broker: FakePublisher, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    queues = PoolQueues(database.engine, database.leader)
    dispatcher = database.dispatcher(broker, Pools(database.engine, queues))
    acme = create_tenant(database.engine, f"t{new_id()[-12:]}", Change({})).id
    database.submit(tenant_id=acme)
    assert dispatcher.run_once(0.0) == 1
    if change == "throttle":
        throttle(database, acme)
    else:
        database.execute(
            "INSERT INTO tenant_limits (tenant_id, pool, in_flight) VALUES (%s, 'medium', 1)", acme
        )
    # It changed half a minute ago, and changes were last read a minute ago.
    ago = "UPDATE tenants SET changed_at = now() - interval '30 seconds' WHERE id = %s"
    database.execute(ago, acme)
    assert queues._changed_at is not None
    queues._changed_at -= timedelta(minutes=1)
    for _ in range(5):
        database.submit(tenant_id=acme)
    with monkeypatch.context() as broken:
        broken.setattr(pool_queues, "READ_TENANTS", "SELECT 1 / 0 /* %(pool)s %(ids)s */")
        with pytest.raises(DBAPIError):
            dispatcher.run_once(10.0)
    assert dispatcher.run_once(20.0) == 0
    assert len(broker.sent) == 1


def test_a_tenant_is_throttled_in_one_pool_only(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    for pool in ("medium", "long"):
        for _ in range(3):
            database.submit(tenant_id=7, pool=pool)
    throttle(database, 7, "long")
    dispatcher.run_once(0.0)
    assert sorted(d.pool for d in broker.sent) == ["long", "medium", "medium", "medium"]


def test_what_is_ready_is_what_nothing_holds_back(database: DatabaseFixture) -> None:
    pools = database.pools()

    def ready(now: float) -> int:
        pools.queues.refresh(now, pools.holds(now).tenants)
        return next(pool.ready for pool in pools.read(now) if pool.name == "medium")

    for _ in range(4):
        database.submit()
        database.submit(dependency="claude")
        database.submit(tenant_id=7)
    assert ready(0.0) == 12
    set_circuit(database, "open")
    assert ready(1.0) == 8
    throttle(database, 7)
    assert ready(2.0) == 8, "one of his may start"
    database.dispatch(rooms={1: 0, 7: 1})
    pools.queues["medium"].fair.set_in_flight(7, 1)
    assert ready(3.0) == 7, "never too few: his may be in either lane"
    set_circuit(database, "closed")
    assert ready(4.0) == 8


def test_ten_thousand_long_jobs_do_not_delay_a_short_one(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    announce(database.engine, Presence("w2", "worker", ["short"], slots=50))
    database.keep_present()
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
        " SELECT gen_random_uuid(), 1, 'count', 'long', '{}', 'queued'"
        " FROM generate_series(1, 10000)"
    )
    dispatcher.run_once(0.0)
    waiting = len(broker.sent)
    short = {database.submit(pool="short") for _ in range(50)}
    dispatcher.run_once(0.1)
    assert {d.id for d in broker.sent[waiting:]} == short, "one turn, as if there were no storm"
