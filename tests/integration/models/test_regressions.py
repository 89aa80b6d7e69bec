"""What the state machine and the races have found, each told as a sentence."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from app.scheduler.maintenance.reaper import Reaper
from models.jobs.checkpoint import Saved, Saving, save_group
from models.jobs.claim import JobRef
from models.jobs.settle import Ending, Settlement, settle_group, settle_statement
from models.jobs.states import JobStatus
from tasks.registry import projections_of
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied

DONE = Ending(JobStatus.SUCCEEDED, tries_spent=1, result="1")
HANDED_BACK = Ending(JobStatus.QUEUED)


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


def lost_and_found(database: DatabaseFixture) -> tuple[JobRef, JobRef]:
    """A run that lost its job, and the one of the same worker that has it now."""
    lost = database.start().ref
    database.expire_leases()
    assert Reaper(database.engine, database.leader, database.types).run_once(0.0) == 1
    (dispatch,) = database.dispatch()
    (found,) = database.claim(JobRef(dispatch.id, dispatch.lease))
    return lost, found.ref


def test_a_lost_run_is_not_told_that_it_settled_when_its_successor_does_so_with_it(
    database: DatabaseFixture,
) -> None:
    lost, found = lost_and_found(database)
    statement = settle_statement(projections_of(database.types.values()))
    group = [Settlement(lost, DONE, 1.0), Settlement(found, DONE, 2.0)]
    assert settle_group(database.engine, statement, "w1", group) == [False, True]
    assert database.job(found.id).slot_seconds == 2.0


def test_a_lost_run_is_not_told_that_its_checkpoint_is_kept_when_its_successors_is(
    database: DatabaseFixture,
) -> None:
    lost, found = lost_and_found(database)
    group = [Saving(lost, '"lost"', None), Saving(found, '"found"', None)]
    assert save_group(database.engine, "w1", group) == [Saved(False), Saved(True)]
    (row,) = database.query("SELECT lease, state FROM checkpoints")
    assert tuple(row) == (found.lease, "found")


def test_a_claim_that_is_handed_back_unused_costs_neither_the_job_nor_the_tenant(
    database: DatabaseFixture,
) -> None:
    claim = database.start()
    assert database.settle(claim.ref, HANDED_BACK, run_seconds=0.0)
    assert database.job(claim.ref.id).slot_seconds == 0.0
    assert database.query("SELECT * FROM usage") == []


def test_a_job_that_is_too_late_to_be_dispatched_has_no_lease_and_was_not_dispatched(
    database: DatabaseFixture,
) -> None:
    job_id = database.submit(not_after=datetime.now(UTC) - timedelta(seconds=1))
    assert database.dispatch() == []
    job = database.job(job_id)
    assert (job.status, job.lease_expires_at, job.dispatched_at) == ("expired", None, None)


def test_a_job_that_is_too_late_to_be_claimed_has_no_lease_and_was_not_started(
    database: DatabaseFixture,
) -> None:
    job_id = database.submit(not_after=datetime.now(UTC) + timedelta(hours=1))
    (dispatch,) = database.dispatch()
    database.execute("UPDATE jobs SET not_after = now() - interval '1 second'")
    assert database.claim(JobRef(job_id, dispatch.lease)) == ()
    job = database.job(job_id)
    assert (job.status, job.lease_expires_at) == ("expired", None)
    assert (job.started_at, job.worker) == (None, None)
