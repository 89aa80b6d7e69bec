"""A living worker keeps its runs, whatever the database's clock and somebody's locks do."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta
from typing import Any

import pytest
from sqlalchemy import Engine

from app.scheduler.maintenance.reaper import Reaper
from tests.integration.scheduler.test_lost_workers import LOOKS
from tests.support.database_fixture import DatabaseFixture
from tests.support.locks import held_lock
from tests.support.one_worker import OneWorker, one_worker
from tests.support.state_machine.clock import Clock


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    return DatabaseFixture(engine)


@pytest.fixture
def reaper(database: DatabaseFixture) -> Reaper:
    return Reaper(database.engine, database.leader, database.types)


@contextmanager
def running(database: DatabaseFixture) -> Iterator[tuple[OneWorker, str]]:
    """A worker that runs a job, and the job."""
    ended, began = threading.Event(), threading.Event()

    def act(ctx: Any, payload: Any) -> None:
        began.set()
        ended.wait(60)

    with one_worker(database) as one:
        one.act = act
        [ref] = one.refs(1)
        run = threading.Thread(target=one.execute, args=((ref,),))
        run.start()
        assert began.wait(10)
        one.flush()
        try:
            yield one, ref.id
        finally:
            ended.set()
            run.join()
            one.flush()


def renewed_at(database: DatabaseFixture) -> datetime:
    [row] = database.query("SELECT renewed_at FROM processes WHERE kind = 'worker'")
    at: datetime = row.renewed_at
    return at


@pytest.mark.parametrize("minutes", [2, 6])
@pytest.mark.parametrize("first", ["worker", "reaper"])
def test_jump_of_the_database_s_clock_costs_no_living_worker_its_runs(
    database: DatabaseFixture, minutes: int, first: str
) -> None:
    clock = Clock(database.engine)
    database.leader.run_once(0.0)
    reaper = Reaper(database.engine, database.leader, database.types)
    with running(database) as (one, job_id):
        one.flush()
        reaper.run_once(0.0)
        clock.move(timedelta(minutes=minutes))
        database.leader.run_once(1.0)
        if first == "worker":
            one.flush()
            one.flush()
        assert reaper.run_once(1.0) == 0
        one.flush()
        one.flush()
        assert reaper.run_once(2.0) == 0
        assert database.job(job_id).lease_expires_at > clock.now


def test_locked_presence_keeps_no_lease_from_being_renewed(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    with running(database) as (one, _):
        database.execute("UPDATE jobs SET lease_expires_at = now() + interval '1 second'")
        with held_lock(database, "SELECT FROM processes WHERE kind = 'worker' FOR UPDATE"):
            one.flush()
            for second in range(2 * LOOKS):
                assert reaper.run_once(second) == 0
        [row] = database.query("SELECT lease_expires_at - now() AS left FROM jobs")
        assert row.left > timedelta(seconds=5)


def test_worker_does_not_say_that_it_has_renewed_a_lease_whose_row_is_locked(
    database: DatabaseFixture, reaper: Reaper
) -> None:
    with running(database) as (one, job_id):
        database.execute("UPDATE jobs SET lease_expires_at = now()")
        with held_lock(database, "SELECT FROM jobs WHERE id = %s FOR UPDATE", job_id):
            for _ in range(3):
                one.flush()
            held_up = renewed_at(database)
            assert held_up <= database.job(job_id).lease_expires_at
        assert reaper.run_once(0.0) == 0, "it could not renew it"
        one.flush()
        one.flush()
        assert renewed_at(database) > held_up
