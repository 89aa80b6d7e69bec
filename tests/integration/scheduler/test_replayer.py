"""Replays of many dead letters: at the tenant's rate, each job once, wherever somebody dies."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.admission.gate import Gate
from app.admission.replays import replay, replay_for_tenants
from app.admission.submission_limits import SubmissionLimits
from app.admission.tenant_limits import TenantLimits
from app.scheduler.maintenance import replayer
from app.scheduler.maintenance.replayer import Candidates, Replayer, choose
from app.tenants.tenant import TenantProfile
from models.jobs import replay_requests
from models.jobs.ids import BELOW_ALL, new_id
from models.jobs.replay_requests import ReplayRequest
from models.leadership import Leader
from models.store.session import transaction
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied
from tests.support.plans import indexes_in, plan_of
from tests.support.tenant_terms import limit_depth, limit_rate, pass_time

MAKE_DEAD = """
    INSERT INTO jobs (id, tenant_id, type, pool, payload, status, lease, finished_at, error_class)
    SELECT id, %s, 'echo', %s, '{}', 'dead', 1, now(), 'TIMEOUT' FROM unnest(%s::uuid[]) AS id
"""


@pytest.fixture
def database(api_database: DatabaseFixture) -> Iterator[DatabaseFixture]:
    found = emptied(api_database)
    found.execute("UPDATE leaders SET expires_at = now() + interval '1 hour'")
    yield found
    found.execute(
        "UPDATE tenants SET submit_per_second = NULL, submit_burst = NULL, changed_at = now()"
    )


@pytest.fixture
def tenant_limits(database: DatabaseFixture) -> TenantLimits:
    limits = SubmissionLimits(per_second=0, burst=0, queue_depth=1_000_000)
    return TenantLimits(database.engine, limits)


@pytest.fixture
def role(database: DatabaseFixture, tenant_limits: TenantLimits) -> Replayer:
    return Replayer(database.engine, database.leader, tenant_limits)


def make_dead(
    database: DatabaseFixture, jobs: int, pool: str = "short", tenant: int = 1
) -> list[str]:
    ids = [new_id() for _ in range(jobs)]
    database.execute(MAKE_DEAD, tenant, pool, ids)
    return ids


def requested(database: DatabaseFixture, tenant_limits: TenantLimits, **asked: Any) -> Any:
    """The row of a replay that has no room at once."""
    found = replay(database.engine, tenant_limits, ReplayRequest(1, **asked))
    assert not isinstance(found, list), found
    return found


def read(database: DatabaseFixture, replay_id: str) -> Any:
    return replay_requests.read(database.engine, replay_id)


def queued(database: DatabaseFixture) -> set[str]:
    rows = database.query("SELECT id::text, replays FROM jobs WHERE status = 'queued'")
    assert all(row.replays == 1 for row in rows)
    return {row.id for row in rows}


def die_again(database: DatabaseFixture) -> None:
    """What is queued runs and fails, a moment after everything that happened so far."""
    for before, after in pairwise(("queued", "dispatched", "running", "dead")):
        database.execute(
            "UPDATE jobs SET status = %s, finished_at = clock_timestamp() + interval '1 s'"
            " WHERE status = %s",
            after,
            before,
        )


def after_peek(role: Replayer, act: Callable[[], object]) -> None:
    """Do something once candidates are read and before they are queued."""
    original = role._peek

    def peek(*given: Any) -> Any:
        found = original(*given)
        act()
        return found

    role._peek = peek  # type: ignore[method-assign]


def test_dead_letters_come_back_at_the_rate_of_their_tenant(
    database: DatabaseFixture, tenant_limits: TenantLimits, role: Replayer
) -> None:
    limit_rate(database, 40.0, 40.0)
    ids, theirs = make_dead(database, 130), make_dead(database, 500, tenant=2)
    asked = requested(database, tenant_limits, type="echo")
    assert (asked.total, asked.done, asked.state) == (130, 0, "running")
    assert len(replay(database.engine, tenant_limits, ReplayRequest(2))) == 500, "no limit, no wait"
    assert queued(database) == set(theirs)
    tenant = TenantProfile(1, "demo", submit_per_second=40.0, submit_burst=40.0)
    gate = Gate(database.engine, 5.0, per_second=0, burst=0, queue_depth=1000)
    done, now = 0, 0.0
    for turn in range(20):
        brought = role.run_once(now)
        assert brought <= 20, "half of the burst is left"
        done += brought
        found = read(database, asked.id)
        assert found.done == done
        if found.state != "running":
            break
        if turn == 2:
            gate.pass_rate(tenant, 15)  # submissions pass meanwhile
        pass_time(database, 0.5)
        now += 0.5
    gate.close(1.0)
    assert (found.state, found.done) == ("finished", 130)
    assert 7 <= turn <= 9, "six and a half turns, and two to see that there are no more"
    assert found.finished_at and queued(database) >= set(ids)
    assert not database.miscounted()


def test_an_equal_request_joins_and_another_does_not(
    database: DatabaseFixture, tenant_limits: TenantLimits, role: Replayer
) -> None:
    limit_rate(database, 10.0, 10.0)
    ids = make_dead(database, 30)
    first = requested(database, tenant_limits, type="echo")
    assert requested(database, tenant_limits, type="echo").id == first.id
    assert requested(database, tenant_limits, error_class="TIMEOUT").id != first.id
    some = requested(database, tenant_limits, ids=tuple(ids[:20]))
    assert requested(database, tenant_limits, ids=tuple(ids[19::-1])).id == some.id
    for turn in range(30):
        role.run_once(float(turn))
        pass_time(database, 10.0)
    rows = database.query("SELECT state, done FROM replays")
    assert {row.state for row in rows} == {"finished"} and sum(row.done for row in rows) == 30
    assert queued(database) == set(ids)
    assert replay(database.engine, tenant_limits, ReplayRequest(1)) == []


def test_a_batch_is_counted_with_its_jobs_or_not_at_all(
    database: DatabaseFixture,
    tenant_limits: TenantLimits,
    role: Replayer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limit_rate(database, 10.0, 10.0)
    make_dead(database, 30)
    asked = requested(database, tenant_limits)
    whole = replayer.WORK
    broken = whole.replace("SELECT count(*) AS queued", "SELECT 1 / 0 AS queued, count(*)")
    assert broken != whole
    monkeypatch.setattr(replayer, "WORK", broken)
    assert role.run_once(0.0) == 0
    assert queued(database) == set() and read(database, asked.id).done == 0
    monkeypatch.setattr(replayer, "WORK", whole)
    pass_time(database, 10.0)
    successor = Replayer(database.engine, database.leader, tenant_limits)
    assert successor.run_once(0.0) == 5 == read(database, asked.id).done
    assert len(queued(database)) == 5


def test_an_overtaken_leader_and_a_cancelled_replay_queue_nothing(
    database: DatabaseFixture, tenant_limits: TenantLimits, role: Replayer
) -> None:
    limit_rate(database, 10.0, 10.0)
    make_dead(database, 30)
    asked = requested(database, tenant_limits)
    stranger = Leader(database.engine, "stranger")
    assert Replayer(database.engine, stranger, tenant_limits).run_once(0.0) == 0
    after_peek(role, lambda: replay_requests.cancel(database.engine, asked.id))
    assert role.run_once(0.0) == 0 and queued(database) == set()
    assert read(database, asked.id).state == "cancelled"
    assert requested(database, tenant_limits).id != asked.id, "a new one may begin"


@pytest.mark.parametrize("days", [None, 1], ids=["until now", "until tomorrow"])
def test_a_replay_of_jobs_that_keep_dying_ends(
    database: DatabaseFixture, tenant_limits: TenantLimits, role: Replayer, days: int | None
) -> None:
    limit_depth(database, "short", 5)
    ids = make_dead(database, 10)
    before = days and datetime.now(UTC) + timedelta(days=days)
    asked = requested(database, tenant_limits, before=before)
    for turn in range(8):  # two passes, and two looks that find nothing more
        role.run_once(turn * 10.0)
        die_again(database)
    found = read(database, asked.id)
    assert (found.state, found.done, found.total) == ("finished", 10, 10)
    rows = database.query("SELECT id::text FROM jobs WHERE replays = 1")
    assert {row.id for row in rows} == set(ids)


def test_a_full_queue_holds_up_its_own_jobs_only(
    database: DatabaseFixture, tenant_limits: TenantLimits, role: Replayer
) -> None:
    limit_depth(database, "long", 2)
    mixed = [make_dead(database, 1, pool)[0] for _ in range(6) for pool in ("long", "short")]
    asked = requested(database, tenant_limits)
    for turn in range(3):
        role.run_once(10.0 * turn)
    assert queued(database) == {*mixed[1::2], mixed[0], mixed[2]}
    found = read(database, asked.id)
    assert (found.done, found.state, found.reason) == (8, "running", "TENANT_QUEUE_DEPTH_EXCEEDED")
    database.execute("UPDATE jobs SET status = 'cancelled' WHERE status = 'queued'")
    database.execute("UPDATE tenant_limits SET depth = 100")
    for turn in range(3, 8):
        role.run_once(10.0 * turn)
    assert queued(database) == set(mixed[4::2])
    assert (read(database, asked.id).done, read(database, asked.id).state) == (12, "finished")


def test_a_job_that_dies_again_is_not_replayed_twice_nor_more_than_asked(
    database: DatabaseFixture, tenant_limits: TenantLimits, role: Replayer
) -> None:
    limit_rate(database, 10.0, 10.0)
    ids = make_dead(database, 30)
    asked = requested(database, tenant_limits, limit=12)
    assert asked.total == 12
    for turn in range(10):
        role.run_once(float(turn))
        pass_time(database, 10.0)
        die_again(database)
    rows = database.query("SELECT id::text FROM jobs WHERE replays = 1")
    assert {row.id for row in rows} == set(ids[:12])
    assert (read(database, asked.id).state, read(database, asked.id).done) == ("finished", 12)


def test_an_operator_s_replay_keeps_the_limits_of_each_tenant(
    database: DatabaseFixture, tenant_limits: TenantLimits, role: Replayer
) -> None:
    limit_rate(database, 10.0, 10.0)
    mine, theirs = make_dead(database, 20), make_dead(database, 20, tenant=2)
    done = replay_for_tenants(database.engine, tenant_limits, [*mine, *theirs, new_id()])
    assert (done.changed, done.later, done.skipped) == (20, 20, 1)
    assert queued(database) == set(theirs)
    for turn in range(10):
        role.run_once(float(turn))
        pass_time(database, 10.0)
    assert queued(database) == {*mine, *theirs}


@given(
    pools=st.lists(st.sampled_from("abc"), max_size=30),
    left=st.fixed_dictionaries(dict.fromkeys("abc", st.integers(0, 12))),
    full=st.sets(st.sampled_from("abc")),
)
def test_the_walk_passes_nothing_that_lacks_a_token(
    pools: list[str], left: dict[str, int], full: set[str]
) -> None:
    jobs = [(new_id(), (1, pool)) for pool in pools]
    rooms, last = {(1, pool): room for pool, room in left.items()}, new_id()
    queues = {(1, pool) for pool in full}
    choice = choose(Candidates(jobs, last, True), dict(rooms), queues, BELOW_ALL)
    taken = [queue for job_id, queue in jobs if job_id in set(choice.ids)]
    assert all(taken.count(q) == min(rooms[q], pools.count(q[1])) for q in rooms)
    assert choice.complete == (choice.position == last)
    for job_id, (_, pool) in jobs:
        if job_id <= choice.position and job_id not in choice.ids:
            assert pool in full and choice.passed
    assert choice.complete or {pool for _, (_, pool) in jobs} - full


def test_a_rare_type_is_found_among_many_in_bounded_looks(
    database: DatabaseFixture,
    tenant_limits: TenantLimits,
    role: Replayer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replayer, "LOOKS_A_TURN", 10)
    limit_rate(database, 10.0, 10.0)
    ids = make_dead(database, 60)
    database.execute("UPDATE jobs SET type = 'rare' WHERE id = ANY (%s::uuid[])", ids[25::25])
    asked = replay_requests.create(database.engine, ReplayRequest(1, type="rare"), 2)
    turns = 0
    while read(database, asked.id).state == "running":
        role.run_once(float(turns))
        turns += 1
    assert queued(database) == {ids[25], ids[50]}
    assert turns >= 6, "each looks at ten"


def test_a_locked_dead_letter_is_not_forgotten(
    database: DatabaseFixture, tenant_limits: TenantLimits, role: Replayer
) -> None:
    ids = make_dead(database, 5)
    asked = replay_requests.create(database.engine, ReplayRequest(1), 5)
    with transaction(database.engine) as connection:
        lock = "SELECT FROM jobs WHERE id = %s FOR UPDATE"
        connection.exec_driver_sql(lock, (ids[2],))
        for turn in range(4):
            role.run_once(float(turn))
        assert queued(database) == {*ids[:2], *ids[3:]}
    for turn in range(4, 9):
        role.run_once(float(turn))
    assert queued(database) == set(ids)
    assert (read(database, asked.id).state, read(database, asked.id).done) == ("finished", 5)


def test_a_turn_walks_indexes(database: DatabaseFixture) -> None:
    for tenant in range(1, 30):
        make_dead(database, 300, tenant=tenant)
    database.execute(
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status, finished_at)"
        " SELECT gen_random_uuid(), tenant_id, type, pool, payload, 'succeeded', now()"
        " FROM jobs, generate_series(1, 4)"
    )
    database.execute("ANALYZE jobs")
    asked = {**ReplayRequest(7, type="echo").parameters, "position": BELOW_ALL}
    plan = plan_of(database, replay_requests.PEEK, **asked, room=500, looks=5000)
    assert indexes_in(plan) == {"jobs_dead", "tenants_pkey"}, plan
    (one,) = make_dead(database, 1)
    batch = {**asked, "replay": new_id(), "chosen": [one], "again": False, "reason": None}
    plan = plan_of(
        database,
        replay_requests.WORK,
        **{**batch, "before": datetime.now(UTC), "ended": False, "epoch": 1},
    )
    assert "Seq Scan on jobs" not in plan, plan
