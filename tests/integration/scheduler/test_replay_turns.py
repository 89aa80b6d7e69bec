"""Replays of several tenants, leaders and requests at a time: turns, bounds, locks."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from app.admission.replays import replay, replay_for_tenants
from app.admission.tenant_limits import TenantLimits
from app.errors import Conflict
from app.scheduler.maintenance import replayer
from app.scheduler.maintenance.replayer import Replayer
from models.jobs import replay_requests
from models.jobs.replay_requests import MOST_RUNNING, ReplayRequest
from models.store.session import transaction
from tests.integration.scheduler.test_replayer import (
    after_peek,
    database,
    make_dead,
    queued,
    read,
    requested,
    role,
    tenant_limits,
)
from tests.support.database_fixture import DatabaseFixture
from tests.support.tenant_terms import limit_rate

__all__ = ["database", "role", "tenant_limits"]


def test_a_leader_that_is_overtaken_between_look_and_batch_queues_nothing(
    database: DatabaseFixture, tenant_limits: TenantLimits, role: Replayer
) -> None:
    limit_rate(database, 10.0, 10.0)
    make_dead(database, 30)
    asked = requested(database, tenant_limits)
    overtake = "UPDATE leaders SET epoch = epoch + %s WHERE role = 'scheduler'"
    after_peek(role, lambda: database.execute(overtake, 1))
    try:
        assert role.run_once(0.0) == 0 and queued(database) == set()
        assert read(database, asked.id).done == 0
    finally:
        database.execute(overtake, -1)


def test_a_job_that_is_replayed_and_dies_between_look_and_batch_stays_dead(
    database: DatabaseFixture, tenant_limits: TenantLimits, role: Replayer
) -> None:
    limit_rate(database, 10.0, 10.0)
    make_dead(database, 30)
    requested(database, tenant_limits)
    later = "UPDATE jobs SET finished_at = clock_timestamp() + interval '1 s'"
    after_peek(role, lambda: database.execute(later))
    assert role.run_once(0.0) == 0 and queued(database) == set()


def test_a_tenant_runs_a_bounded_number_of_replays(
    database: DatabaseFixture, tenant_limits: TenantLimits
) -> None:
    limit_rate(database, 1.0, 1.0)
    ids = make_dead(database, 60)
    made = [requested(database, tenant_limits, limit=2 + n) for n in range(MOST_RUNNING)]
    with pytest.raises(Conflict, match="10 replays"):
        requested(database, tenant_limits, limit=50)
    assert requested(database, tenant_limits, limit=2).id == made[0].id, "an equal one joins"
    done = replay_for_tenants(database.engine, tenant_limits, ids[:5])
    assert done.later == 5, "an operator's selection comes in parts, each a replay"
    database.execute("UPDATE replays SET state = 'cancelled'")
    threads = 4

    def ask(thread: int) -> None:
        for n in range(MOST_RUNNING):
            asked = ReplayRequest(1, limit=2 + thread * MOST_RUNNING + n)
            replay_requests.create(database.engine, asked, 60)

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(ask, range(threads)))
    [[running]] = database.query("SELECT count(*) FROM replays WHERE state = 'running'")
    assert MOST_RUNNING <= running < MOST_RUNNING + threads


def test_turns_go_round_by_tenant_and_within_a_tenant(
    database: DatabaseFixture,
    tenant_limits: TenantLimits,
    role: Replayer,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replayer, "REPLAYS_A_TURN", 2)
    monkeypatch.setattr(replayer, "JOBS_A_TURN", 4)
    for tenant in (1, 2, 3):
        make_dead(database, 60, tenant=tenant)
    several = [
        replay_requests.create(database.engine, ReplayRequest(1, limit=10 + n), 60).id
        for n in range(MOST_RUNNING)
    ]
    others = [
        replay_requests.create(database.engine, ReplayRequest(tenant), 60).id for tenant in (2, 3)
    ]
    for turn in range(15):
        assert role.run_once(float(turn)) == 4
    assert [read(database, one).done for one in others] == [20, 20]
    assert [read(database, one).done for one in several] == [2] * MOST_RUNNING


def test_a_locked_bucket_holds_up_its_own_tenant_only(
    database: DatabaseFixture, tenant_limits: TenantLimits, role: Replayer
) -> None:
    database.execute("UPDATE tenants SET submit_per_second = 0.01, submit_burst = 20")
    database.execute("INSERT INTO rate_buckets (tenant_id) VALUES (1), (2)")
    make_dead(database, 30)
    make_dead(database, 30, tenant=2)
    locked = requested(database, tenant_limits)
    free = replay(database.engine, tenant_limits, ReplayRequest(2))
    assert not isinstance(free, list)
    with transaction(database.engine) as connection:
        lock = "SELECT FROM rate_buckets WHERE tenant_id = 1 FOR UPDATE"
        assert connection.exec_driver_sql(lock).rowcount == 1
        began = time.monotonic()
        assert role.run_once(0.0) == 10
        assert time.monotonic() - began < 2.0, "it waited for the lock"
        assert read(database, free.id).done == 10
        found = read(database, locked.id)
        assert (found.done, found.state, found.reason) == (0, "running", None)
    assert role.run_once(1.0) == 10 == read(database, locked.id).done


def test_a_job_can_be_replayed_however_often_it_was(
    database: DatabaseFixture, tenant_limits: TenantLimits, role: Replayer
) -> None:
    limit_rate(database, 10.0, 10.0)
    ids = make_dead(database, 30)
    database.execute("UPDATE jobs SET replays = 32767 WHERE id = %s", ids[0])
    requested(database, tenant_limits)
    assert role.run_once(0.0) > 0
    row = database.job(ids[0])
    assert (row.status, row.replays) == ("queued", 32767)


@pytest.mark.parametrize("step", ["_peek", "_work"])
def test_a_replay_that_always_fails_keeps_no_other_tenant_from_its_turns(
    database: DatabaseFixture, role: Replayer, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    monkeypatch.setattr(replayer, "REPLAYS_A_TURN", 1)
    dead = {}
    for tenant in (1, 2):
        dead[tenant] = make_dead(database, 30, tenant=tenant)
        replay_requests.create(database.engine, ReplayRequest(tenant, limit=20), 60)
    work, failed = getattr(role, step), 0

    def fail_for_the_first(replay: Any, *given: Any) -> Any:
        nonlocal failed
        if replay.tenant_id == 1:
            failed += 1
            database.query("SELECT 1 / 0")
        return work(replay, *given)

    monkeypatch.setattr(role, step, fail_for_the_first)
    for turn in range(5):
        role.run_once(float(turn))
    assert failed == 1, "its tenant is left alone for some seconds"
    assert queued(database) & set(dead[2])
    assert not queued(database) & set(dead[1])
