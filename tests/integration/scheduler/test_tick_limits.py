"""Ticks pass the limits of submissions: what has no room waits, and is given up by catch-up."""

from __future__ import annotations

import time
from collections.abc import Iterator
from datetime import timedelta

import pytest

from app.admission.gate import Gate
from app.admission.submission_limits import SubmissionLimits
from app.admission.tenant_limits import TenantLimits
from app.errors import RateLimited
from app.scheduler.maintenance.recurring_jobs import BATCH
from app.tenants.tenant import TenantProfile
from models.store.session import transaction
from tests.integration.scheduler.test_recurring_jobs import (
    MINUTE,
    clock,
    database,
    events,
    jobs,
    keep,
    minutes_ago,
    role,
    row,
)
from tests.support.database_fixture import DatabaseFixture
from tests.support.tenant_terms import limit_depth, limit_rate, pass_time

__all__ = ["database"]

POOL = "short"
NO_LIMITS = {"per_second": 0, "burst": 0, "queue_depth": 1_000_000}


@pytest.fixture(autouse=True)
def own_terms(database: DatabaseFixture) -> Iterator[None]:
    yield
    database.execute(
        "UPDATE tenants SET submit_per_second = NULL, submit_burst = NULL, changed_at = now()"
    )


def test_a_tick_waits_for_room_in_the_queue(database: DatabaseFixture) -> None:
    limit_depth(database, POOL, 2)
    ids = [keep(database) for _ in range(3)]
    ours = role(database)
    assert ours.run_once(0.0) == 2
    waiting = [found for one in ids if (found := row(database, one)).made == 0]
    assert len(jobs(database)) == 2 and len(waiting) == 1
    assert waiting[0].next_at < clock(database) and waiting[0].skipped == 0
    assert jobs(database)[0].pool == POOL and events(database) == []
    assert ours.run_once(10.0) == 0, "there is no room yet"
    database.execute("UPDATE jobs SET status = 'cancelled' WHERE id = %s", jobs(database)[0].id)
    assert ours.run_once(11.0) == 0, "not looked at for a moment"
    assert ours.run_once(16.0) == 1
    assert row(database, waiting[0].id).made == 1 and events(database) == []


def test_ticks_and_submissions_draw_from_one_bucket(database: DatabaseFixture) -> None:
    limit_rate(database, 0.02, 4.0)
    tenant = TenantProfile(1, "demo", submit_per_second=0.02, submit_burst=4.0)
    gate = Gate(database.engine, 5.0, per_second=0, burst=0, queue_depth=1000)
    for _ in range(2):
        gate.pass_rate(tenant)
    for _ in range(5):
        keep(database)
    ours = role(database)
    ours.run_once(0.0)
    assert len(jobs(database)) == 2, "what the submissions left"
    with pytest.raises(RateLimited):
        gate.pass_rate(tenant)
    gate.close(1.0)
    pass_time(database, 100.0)
    ours.run_once(10.0)
    assert len(jobs(database)) == 4
    pass_time(database, 6000.0)
    ours.run_once(20.0)
    assert len(jobs(database)) == 5


def test_ticks_to_catch_up_with_come_as_far_as_there_is_room(database: DatabaseFixture) -> None:
    limit_depth(database, POOL, 4)
    first = minutes_ago(database, 9)
    one = keep(database, cron="* * * * *", catch_up="all", next_at=first)
    assert role(database).run_once(0.0) == 1
    assert [job.execute_at for job in jobs(database)] == [first + MINUTE * n for n in range(4)]
    after = row(database, one)
    assert (after.next_at, after.made) == (first + 4 * MINUTE, 4)
    database.execute("UPDATE jobs SET status = 'cancelled'")
    assert role(database).run_once(0.0) == 1
    assert row(database, one).made == 8, "none is lost or doubled"


def test_ticks_that_waited_too_long_for_room_are_missed_for_that_reason(
    database: DatabaseFixture,
) -> None:
    limit_depth(database, POOL, 0)
    none = keep(database, catch_up="none")
    one = keep(database, catch_up="one", cron="* * * * *", next_at=minutes_ago(database, 3))
    ours = role(database)
    assert ours.run_once(0.0) == 0 and events(database) == []
    database.execute("UPDATE schedules SET next_at = now() - interval '2 min' WHERE id = %s", none)
    limit_depth(database, POOL, 1)
    assert ours.run_once(10.0) == 2
    missed = {detail["schedule"]: (kind, detail["reason"]) for kind, detail in events(database)}
    assert missed == dict.fromkeys((none, one), ("schedule_missed", "TENANT_QUEUE_DEPTH_EXCEEDED"))
    assert (row(database, none).made, row(database, one).made) == (0, 1)


def test_held_schedules_keep_nobody_waiting(database: DatabaseFixture) -> None:
    limit_depth(database, POOL, 0)
    now = clock(database)
    for n in range(2 * BATCH + 10):
        keep(database, next_at=now - timedelta(seconds=600 - n))
    theirs = keep(database, tenant_id=2, next_at=now - timedelta(seconds=600 - BATCH))
    ours = role(database)
    for turn in range(3):
        ours.run_once(turn * 0.25)
    assert row(database, theirs).made == 1
    assert len(jobs(database)) == 1


def test_allowances_are_whole_or_leave_some_to_submissions(database: DatabaseFixture) -> None:
    limit_rate(database, 0.01, 10.0)
    take = TenantLimits(database.engine, SubmissionLimits(**NO_LIMITS)).take
    mine, other = (1, POOL), (2, POOL)
    assert take({mine: 11}, whole=True).jobs == {mine: 0}, "it would leave a debt"
    spared = take({mine: 100, other: 100}, spare=True)
    assert spared.jobs == {mine: 5, other: 100}
    assert spared.held[1].code == "TENANT_RATE_LIMIT_EXCEEDED" and 2 not in spared.held
    assert take({mine: 6}, whole=True).jobs == {mine: 0}
    assert take({mine: 4}, whole=True).jobs == {mine: 4}
    assert take({mine: 100}).jobs == {mine: 1}
    limit_depth(database, POOL, 3)
    pass_time(database, 6000.0)
    assert take({mine: 4, (1, "long"): 1}, whole=True).jobs == {mine: 0, (1, "long"): 0}
    assert take({mine: 4, (1, "long"): 9}).jobs == {mine: 3, (1, "long"): 7}


def test_a_locked_bucket_holds_up_the_ticks_of_its_own_tenant_only(
    database: DatabaseFixture,
) -> None:
    database.execute("UPDATE tenants SET submit_per_second = 0.01, submit_burst = 20")
    database.execute("INSERT INTO rate_buckets (tenant_id) VALUES (1), (2)")
    locked, free = keep(database), keep(database, tenant_id=2)
    ours = role(database)
    with transaction(database.engine) as connection:
        connection.exec_driver_sql("SELECT FROM rate_buckets WHERE tenant_id = 1 FOR UPDATE")
        began = time.monotonic()
        assert ours.run_once(0.0) == 1
        assert time.monotonic() - began < 2.0, "it waited for the lock"
        assert row(database, free).made == 1
    assert ours.run_once(1.0) == 1
    assert row(database, locked).made == 1 and events(database) == []
