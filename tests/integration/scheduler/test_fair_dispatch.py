"""The dispatcher shares a pool between tenants, and goes on from what the tables say."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from typing import Any

import pytest

from app.reads.estimates import Estimates
from app.scheduler.dispatching import pool_queues
from app.scheduler.dispatching.dispatcher import Dispatcher
from app.scheduler.dispatching.pools import Pools
from app.scheduler.dispatching.reconciler import ShareReconciler
from app.scheduler.maintenance.reaper import Reaper
from models.jobs.claim import JobRef
from models.jobs.dispatch import Dispatch, mark
from models.leadership import Leader
from models.presence import Presence, announce
from models.store.errors import StateStoreUnavailable
from models.store.prepared import PreparedStatement
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import emptied

QUEUED_TENANTS = "SELECT DISTINCT tenant_id FROM jobs WHERE status = 'queued'"


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    database = emptied(api_database)
    database.execute("DELETE FROM tenants WHERE id > 100")
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=10))
    database.keep_present()
    # Every job is expected to take a second.
    database.execute(
        "INSERT INTO job_types (type, declared_pool, pool, mean_seconds, runs)"
        " VALUES ('echo', 'medium', 'medium', 1, 100)"
    )
    return database


@pytest.fixture
def broker() -> FakePublisher:
    return FakePublisher()


@pytest.fixture
def pools(database: DatabaseFixture) -> Pools:
    return database.pools()


@pytest.fixture
def dispatcher(database: DatabaseFixture, broker: FakePublisher, pools: Pools) -> Dispatcher:
    return database.dispatcher(broker, pools)


@pytest.fixture
def shares(database: DatabaseFixture, pools: Pools) -> ShareReconciler:
    return ShareReconciler(
        database.engine, database.leader, pools.queues, Estimates(database.engine)
    )


def tenant(database: DatabaseFixture, number: int, tier: str = "standard", **limits: int) -> int:
    database.execute(
        "INSERT INTO tenants (id, name, tier) OVERRIDING SYSTEM VALUE VALUES (%s, %s, %s)",
        number,
        f"t{number}",
        tier,
    )
    for name, value in limits.items():
        database.execute(
            f"INSERT INTO tenant_limits (tenant_id, pool, {name}) VALUES (%s, 'medium', %s)",
            number,
            value,
        )
    return number


def fill(database: DatabaseFixture, tenant_id: int, jobs: int) -> None:
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
        " SELECT gen_random_uuid(), %s, 'echo', 'medium', '{}', 'queued'"
        " FROM generate_series(1, %s)",
        tenant_id,
        jobs,
    )


def end(database: DatabaseFixture, dispatches: Iterable[Dispatch], seconds: float = 1.0) -> None:
    """They ran so long and succeeded; what the settling statement does to rows and usage."""
    ids = [each.id for each in dispatches]
    database.execute("UPDATE jobs SET status = 'running' WHERE id = ANY (%s::uuid[])", ids)
    database.execute("UPDATE jobs SET status = 'succeeded' WHERE id = ANY (%s::uuid[])", ids)
    database.execute(
        "INSERT INTO usage AS used (tenant_id, pool, day, shard, slot_seconds, slice_seconds)"
        " SELECT tenant_id, pool, current_date, 0, count(*) * %s::float8,"
        " count(*) FILTER (WHERE slice <> '') * %s::float8 FROM jobs"
        " WHERE id = ANY (%s::uuid[]) GROUP BY tenant_id, pool"
        " ON CONFLICT (tenant_id, day, pool, shard)"
        " DO UPDATE SET slot_seconds = used.slot_seconds + excluded.slot_seconds,"
        " slice_seconds = used.slice_seconds + excluded.slice_seconds",
        seconds,
        seconds,
        ids,
    )


def shared(sent: Iterable[Dispatch]) -> Counter[int]:
    return Counter(each.tenant_id for each in sent)


def test_a_flood_leaves_room_for_whoever_comes_next(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    fill(database, 1, 1000)
    dispatcher.run_once(0.0)
    end(database, broker.sent[:4])
    fill(database, 2, 3)
    broker.sent.clear()
    assert dispatcher.run_once(0.1) == 4
    assert shared(broker.sent)[2] >= 2, "an equal part at once"


def test_slots_are_shared_by_weight_and_used_time(
    database: DatabaseFixture,
    dispatcher: Dispatcher,
    broker: FakePublisher,
    shares: ShareReconciler,
) -> None:
    """Of two with equal weights, one whose jobs take four times as long gets a quarter."""
    for number in (101, 102):
        fill(database, tenant(database, number), 400)
    fill(database, tenant(database, 103, "pro"), 400)
    seconds: Counter[int] = Counter()
    jobs: Counter[int] = Counter()
    for turn in range(60):
        dispatcher.run_once(turn / 10)
        for each in broker.sent:
            length = 4.0 if each.tenant_id == 101 else 1.0
            end(database, [each], length)
            seconds[each.tenant_id] += int(length)
            jobs[each.tenant_id] += 1
        broker.sent.clear()
        shares.run_once(float(turn))
        if jobs[103] > 350:
            break
    total = sum(seconds.values())
    assert jobs[102] > 2.5 * jobs[101]
    assert abs(seconds[101] / total - 10 / 120) < 0.03
    assert abs(seconds[102] / total - 10 / 120) < 0.03


def test_a_new_leader_goes_on_where_the_old_one_was(
    database: DatabaseFixture,
    dispatcher: Dispatcher,
    broker: FakePublisher,
    shares: ShareReconciler,
) -> None:
    fill(database, tenant(database, 101), 100)
    fill(database, tenant(database, 102), 100)
    dispatcher.run_once(0.0)
    # One of them turned out to need twenty times as long as expected; nobody led meanwhile.
    shares.run_once(0.0)
    for each in broker.sent:
        end(database, [each], 20.0 if each.tenant_id == 101 else 1.0)
    broker.sent.clear()
    database.leader.resign()
    leader = Leader(database.engine, "another")
    leader.run_once(0.0)
    database.leader = leader
    pools = database.pools()
    successor = database.dispatcher(broker, pools)
    pools.queues.refresh(1.0, {})
    ShareReconciler(database.engine, leader, pools.queues, Estimates(database.engine)).run_once(1.0)
    successor.run_once(1.1)
    assert shared(broker.sent) == {102: 20}, "the other one is far ahead"


def test_runs_that_were_lost_count_for_the_share_of_their_tenant(
    database: DatabaseFixture,
    dispatcher: Dispatcher,
    broker: FakePublisher,
    shares: ShareReconciler,
) -> None:
    fill(database, tenant(database, 101), 100)
    fill(database, tenant(database, 102), 100)
    dispatcher.run_once(0.0)
    shares.run_once(0.0)
    lost = [each for each in broker.sent if each.tenant_id == 101]
    end(database, [each for each in broker.sent if each.tenant_id == 102], 1.0)
    database.claim(*(JobRef(each.id, each.lease) for each in lost))
    database.execute(
        "UPDATE jobs SET started_at = now() - interval '51 seconds', lease_expires_at = now()"
        " - interval '1 second' WHERE status = 'running'"
    )
    reaper = Reaper(database.engine, database.leader, database.types)
    assert reaper.run_once(0.0) == len(lost) > 0
    broker.sent.clear()
    shares.run_once(1.0)
    dispatcher.run_once(1.1)
    assert shared(broker.sent).keys() == {102}, "the other one has used twenty times as much"


def test_priority_orders_a_tenants_own_jobs_and_nobody_elses(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    for _ in range(30):
        database.submit(tenant_id=7, priority=9)
    plain = [database.submit(tenant_id=8) for _ in range(10)]
    urgent = database.submit(tenant_id=8, priority=1)
    dispatcher.run_once(0.0)
    assert shared(broker.sent) == {7: 10, 8: 10}
    assert [each.id for each in broker.sent if each.tenant_id == 8] == [urgent, *plain[:9]]


def test_a_cap_holds_from_turn_to_turn_and_in_the_express_lane(
    database: DatabaseFixture,
    dispatcher: Dispatcher,
    broker: FakePublisher,
    shares: ShareReconciler,
) -> None:
    capped = tenant(database, 101, in_flight=3)
    dispatcher.run_once(0.0)
    express = database.submit(express=True, tenant_id=capped, cap=3)
    assert database.job(express).status == "queued"
    fill(database, capped, 20)
    for turn in range(5):
        dispatcher.run_once(0.1 + turn / 10)
    assert len(broker.sent) == 3
    end(database, broker.sent[:2])
    shares.run_once(1.0)
    dispatcher.run_once(1.1)
    dispatcher.run_once(1.2)
    assert len(broker.sent) == 5
    database.execute("UPDATE tenant_limits SET in_flight = 6")
    database.execute("UPDATE tenants SET changed_at = now() WHERE id = 101")
    dispatcher.run_once(3.0)
    assert len(broker.sent) == 8, "a new cap is heard of"


def test_the_cap_of_a_tier_holds_unless_it_is_lifted(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    limited, lifted = tenant(database, 101), tenant(database, 102)
    database.execute("UPDATE tenants SET tier_limits = true WHERE id = %s", limited)
    database.execute("UPDATE processes SET slots = 400")
    for each in (limited, lifted):
        fill(database, each, 300)
    for turn in range(5):
        dispatcher.run_once(turn / 10)
    assert shared(broker.sent)[limited] == 100
    assert shared(broker.sent)[lifted] > 200


def test_a_thousand_free_accounts_have_one_slice_together(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    database.execute(
        "INSERT INTO tenants (id, name, tier) OVERRIDING SYSTEM VALUE"
        " SELECT number, 'f' || number, 'free' FROM generate_series(1001, 2000) AS number"
    )
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status)"
        " SELECT gen_random_uuid(), number, 'echo', 'medium', '{}', 'queued'"
        " FROM generate_series(1001, 2000) AS number"
    )
    fill(database, tenant(database, 101), 100)
    free: set[str] = set()
    for turn in range(20):
        dispatcher.run_once(turn / 10)
        free |= {each.id for each in broker.sent if each.tenant_id > 1000}
        assert sum(database.job(each).status == "dispatched" for each in free) <= 1
        end(database, broker.sent[:5])
        del broker.sent[:5]
    assert 1 <= len(free) <= 8, "nobody is starved, and most of the pool is for those who pay"


def test_a_slice_with_workers_of_its_own_serves_its_tenant_in_a_full_pool(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    fill(database, tenant(database, 101), 100)
    dispatcher.run_once(0.0)
    assert dispatcher.run_once(0.1) == 0, "the pool is full"
    broker.sent.clear()
    big = tenant(database, 102, "enterprise", reserved=2)
    announce(database.engine, Presence("w2", "worker", ["medium.reserved.t102"], slots=2))
    fill(database, big, 10)
    dispatcher.run_once(1.0)
    assert [(each.tenant_id, each.queue) for each in broker.sent] == [
        (102, "medium.reserved.t102")
    ] * 4, "two rounds of its two slots"
    assert {database.job(each.id).pool for each in broker.sent} == {"medium"}
    database.execute("UPDATE processes SET draining = true WHERE name = 'w2'")
    database.execute("UPDATE jobs SET status = 'running' WHERE status = 'dispatched'")
    database.execute("UPDATE jobs SET status = 'succeeded' WHERE status = 'running'")
    broker.sent.clear()
    dispatcher.run_once(2.0)
    assert {each.queue for each in broker.sent if each.tenant_id == 102} == {"medium"}


def test_free_accounts_move_to_workers_of_their_own(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    announce(database.engine, Presence("w2", "worker", ["medium.free"], slots=3))
    for number in (101, 102):
        fill(database, tenant(database, number, "free"), 10)
    dispatcher.run_once(0.0)
    assert shared(broker.sent) == {101: 3, 102: 3}
    assert {each.queue for each in broker.sent} == {"medium.free"}


def test_a_job_that_nobody_rang_for_is_found(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    dispatcher.run_once(0.0)
    database.submit()
    database.execute("DELETE FROM arrivals")
    dispatcher.run_once(1.0)
    dispatcher.run_once(2.0)
    assert dispatcher.run_once(2.1) == 1


def test_an_arrival_is_taken_by_the_leader_only(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    database.submit()
    database.execute("UPDATE leaders SET epoch = epoch + 1")
    dispatcher.run_once(0.0)
    assert broker.sent == []
    assert len(database.query("SELECT * FROM arrivals")) == 1


def test_a_job_handed_back_rings_again(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher
) -> None:
    job_id = database.submit()
    dispatcher.run_once(0.0)
    (sent,) = broker.sent
    assert database.query("SELECT * FROM arrivals") == []
    database.claim(JobRef(sent.id, sent.lease))
    database.execute("UPDATE jobs SET status = 'queued' WHERE id = %s", job_id)
    assert dispatcher.run_once(0.1) == 1


def test_a_tenant_that_was_forgotten_goes_on_where_it_was(
    database: DatabaseFixture,
    dispatcher: Dispatcher,
    broker: FakePublisher,
    shares: ShareReconciler,
    pools: Pools,
) -> None:
    for number in (101, 102):
        fill(database, tenant(database, number), 10)
    dispatcher.run_once(0.0)
    shares.run_once(0.0)
    for each in broker.sent:
        end(database, [each], 5.0 if each.tenant_id == 101 else 1.0)
    broker.sent.clear()
    for turn in (1.0, 700.0, 1400.0):
        dispatcher.run_once(turn)
        shares.run_once(turn)
    queue = pools.queues["medium"]
    assert not queue.fair.has_tenant(101) and not queue.fair.has_tenant(102)
    assert not (queue.counted or queue.recent or queue.active)
    assert database.query("SELECT * FROM shares WHERE tenant_id = 101"), "the table knows"
    fill(database, 101, 3)
    dispatcher.run_once(1401.0)
    assert shared(broker.sent) == {101: 3}


def test_lines_of_an_earlier_term_are_not_written_down(
    database: DatabaseFixture, dispatcher: Dispatcher, shares: ShareReconciler
) -> None:
    fill(database, tenant(database, 101), 30)
    dispatcher.run_once(0.0)
    shares.run_once(0.0)
    before = database.query("SELECT tenant_id, pool, updated_at FROM shares ORDER BY 1, 2")
    database.execute("UPDATE leaders SET expires_at = now()")
    database.leader.run_once(1.0)
    shares.run_once(2.0)
    assert database.query("SELECT tenant_id, pool, updated_at FROM shares ORDER BY 1, 2") == before


def test_a_free_account_that_was_forgotten_stops_nobody(
    database: DatabaseFixture,
    dispatcher: Dispatcher,
    broker: FakePublisher,
    shares: ShareReconciler,
) -> None:
    fill(database, tenant(database, 101, "free"), 1)
    dispatcher.run_once(0.0)
    end(database, broker.sent)
    for turn in (1.0, 700.0, 1400.0):
        dispatcher.run_once(turn)
        shares.run_once(turn)
    database.submit()
    assert dispatcher.run_once(1401.0) == 1


def test_arrivals_that_piled_up_are_discarded_and_every_lane_is_found(
    database: DatabaseFixture, dispatcher: Dispatcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    dispatcher.run_once(0.0)
    monkeypatch.setattr("app.scheduler.dispatching.pool_queues.MOST_ARRIVALS", 10)
    fewer = pool_queues.TAKE_ARRIVALS.replace("LIMIT 20000", "LIMIT 10")
    monkeypatch.setattr(
        "app.scheduler.dispatching.pool_queues.PREPARED", PreparedStatement("fewer", fewer)
    )
    for _ in range(30):
        database.submit()
    database.submit(tenant_id=8)
    assert dispatcher.run_once(1.0) == 20
    assert database.query("SELECT * FROM arrivals") == []
    assert {row[0] for row in database.query(QUEUED_TENANTS)} == {1}


def test_a_turn_that_fails_loses_no_arrival(
    database: DatabaseFixture,
    dispatcher: Dispatcher,
    broker: FakePublisher,
    pools: Pools,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    dispatcher.run_once(0.0)
    fill(database, 8, 30)
    dispatcher.run_once(0.5)
    database.submit(tenant_id=9)
    with monkeypatch.context() as broken:
        broken.setattr(pools.queues, "_update", fail)
        with pytest.raises(ValueError, match="no"):
            dispatcher.run_once(1.0)
    end(database, broker.sent)
    broker.sent.clear()
    dispatcher.run_once(1.1)
    assert shared(broker.sent)[9] == 1


def fail(*_: object) -> None:
    raise ValueError("no")


def test_a_lost_answer_overruns_no_cap(
    database: DatabaseFixture,
    dispatcher: Dispatcher,
    broker: FakePublisher,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fill(database, tenant(database, 101, in_flight=3), 20)

    def mark_and_lose_the_answer(*arguments: Any, **heads: Any) -> None:
        mark(*arguments, **heads)
        raise StateStoreUnavailable("lost")

    with monkeypatch.context() as broken:
        broken.setattr("app.scheduler.dispatching.dispatcher.mark", mark_and_lose_the_answer)
        with pytest.raises(StateStoreUnavailable):
            dispatcher.run_once(0.0)
    for turn in range(3):
        dispatcher.run_once(1.0 + turn)
    assert broker.sent == [], "three are in flight, though nobody was told"


def test_what_runs_in_a_slice_costs_no_share_and_moves_no_time(
    database: DatabaseFixture,
    dispatcher: Dispatcher,
    broker: FakePublisher,
    shares: ShareReconciler,
    pools: Pools,
) -> None:
    big = tenant(database, 102, "enterprise", reserved=40)
    database.execute("UPDATE tenants SET weight = 10 WHERE id = 102")
    announce(database.engine, Presence("w2", "worker", ["medium.reserved.t102"], slots=40))
    database.keep_present()
    fill(database, big, 2000)
    fill(database, tenant(database, 101), 400)
    got: Counter[tuple[int, str]] = Counter()
    for turn in range(12):
        if turn == 6:
            fill(database, tenant(database, 103), 400)
        dispatcher.run_once(float(turn))
        if turn >= 6:
            got.update((each.tenant_id, each.slice) for each in broker.sent)
        end(database, broker.sent)
        broker.sent.clear()
        shares.run_once(float(turn))
    assert got[102, "reserved.t102"] >= 400
    equal = [got[number, ""] for number in (101, 102, 103)]
    assert min(equal) >= 30 and max(equal) <= 1.5 * min(equal), equal


def test_slots_that_nobody_wanted_are_no_debt(
    database: DatabaseFixture,
    dispatcher: Dispatcher,
    broker: FakePublisher,
    shares: ShareReconciler,
) -> None:
    """By the express lane, while others wait for a quota."""
    database.execute(
        "INSERT INTO quotas (dependency, closed_until) VALUES ('claude', now() + interval '1 h')"
    )
    database.submit(tenant_id=103, dependency="claude")
    for number in (101, 102):
        fill(database, tenant(database, number), 1)
    for turn in range(3):
        dispatcher.run_once(float(turn))
        end(database, broker.sent)
        broker.sent.clear()
        shares.run_once(float(turn))
    database.execute(
        "UPDATE usage SET slot_seconds = slot_seconds + 3600 WHERE tenant_id = 101"
    )  # as if it had used the idle pool for an hour
    database.start(tenant_id=101)
    shares.run_once(4.0)
    for number in (101, 102):
        fill(database, number, 100)
    dispatcher.run_once(5.0)
    assert abs(shared(broker.sent)[101] - shared(broker.sent)[102]) <= 2


def test_free_accounts_in_line_hold_up_neither_the_express_lane_nor_promotion(
    database: DatabaseFixture, dispatcher: Dispatcher, pools: Pools
) -> None:
    fill(database, tenant(database, 101, "free"), 500)
    dispatcher.run_once(0.0)
    dispatcher.run_once(0.1)
    (medium,) = [pool for pool in pools.read(0.2) if pool.name == "medium"]
    assert (medium.queued, medium.ready) == (499, 0)
    assert pools.free_full("medium")
    assert database.job(database.submit(express=True)).status == "dispatched"


def test_a_change_during_a_long_pause_is_seen_afterwards(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher, pools: Pools
) -> None:
    fill(database, tenant(database, 101), 1)
    dispatcher.run_once(0.0)
    end(database, broker.sent)
    broker.sent.clear()
    # The last look was a minute ago; since then an operator set a cap, half a minute ago.
    pools.queues._changed_at = database.query("SELECT now() - interval '1 minute'")[0][0]
    database.execute(
        "INSERT INTO tenant_limits (tenant_id, pool, in_flight) VALUES (101, 'medium', 1)"
    )
    database.execute("UPDATE tenants SET changed_at = now() - interval '30 seconds' WHERE id = 101")
    fill(database, 101, 10)
    dispatcher.run_once(60.0)
    assert len(broker.sent) == 1


def test_jobs_that_a_sweep_finds_are_dispatched_whatever_the_counts_say(
    database: DatabaseFixture, dispatcher: Dispatcher, broker: FakePublisher, pools: Pools
) -> None:
    jobs = {database.submit() for _ in range(25)}
    database.execute("UPDATE job_count_deltas SET queued = -5 WHERE queued > 0")
    for turn in range(6):
        dispatcher.run_once(float(turn))
        database.execute("UPDATE jobs SET status = 'running' WHERE status = 'dispatched'")
        database.execute("UPDATE jobs SET status = 'succeeded' WHERE status = 'running'")
    assert {sent.id for sent in broker.sent} == jobs
    assert not pools.queues["medium"].swept, "nothing is left"
