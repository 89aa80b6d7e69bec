"""The reaper pauses when something holds up statements: workers may not have renewed either."""

from __future__ import annotations

import time

import pytest

from app.scheduler.maintenance.reaper import Reaper
from app.scheduler.relief import Relief
from app.scheduler.role import REAP_PAUSE_SECONDS, TimedRole, run_due
from models.store.errors import StatementTooSlow
from tests.integration.scheduler.test_lost_workers import run
from tests.integration.scheduler.test_relief import Broker, silence
from tests.support.database_fixture import DatabaseFixture


class Slow:
    """A role that meets a lock on ``jobs``."""

    def run_once(self, now: float) -> int:
        raise StatementTooSlow


def test_slow_statement_of_any_role_puts_off_the_reaper_once(database: DatabaseFixture) -> None:
    """Once: a role that waits for a lock all the time does not keep it from reaping."""
    job_id = run(database)
    database.expire_leases()
    reaping = TimedRole(Reaper(database.engine, database.leader, database.types), 1.0)
    slow = TimedRole(Slow(), 0.0)
    now = time.monotonic()
    run_due([slow, reaping], database.leader, now, reaping=reaping)
    assert database.job(job_id).status == "running"
    slow.due = 0.0
    after = time.monotonic() + REAP_PAUSE_SECONDS
    run_due([slow, reaping], database.leader, after, reaping=reaping)
    assert database.job(job_id).status == "queued"


def test_what_fails_in_a_row_puts_off_the_reaper_each_time() -> None:
    """While the state store is away workers cannot renew their leases."""
    reaping = TimedRole(Slow(), 1.0)
    reaping.put_off()
    first = reaping.due
    assert first > time.monotonic()
    reaping.put_off()
    assert reaping.due == first
    reaping.put_off(again=True)
    assert reaping.due > first


def test_slow_statement_of_the_relief_puts_off_its_reaper(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = run(database)
    relief = Relief(database.engine, Broker(), "api-1", database.types, wait_seconds=0)
    silence(database, 61)
    relief.run_once(time.monotonic())
    assert relief.active
    monkeypatch.setattr(relief, "_read_held", lambda now: Slow().run_once(now))
    with pytest.raises(StatementTooSlow):
        relief.run_once(time.monotonic())
    database.expire_leases()
    monkeypatch.undo()
    relief.run_once(time.monotonic() + 0.5 * REAP_PAUSE_SECONDS)
    assert database.job(job_id).status == "running"
    relief.run_once(time.monotonic() + REAP_PAUSE_SECONDS)
    assert database.job(job_id).status != "running"
    relief.end()
