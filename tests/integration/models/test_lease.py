"""Fenced leases: who lost a lease writes nothing, and no message runs anything twice."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from models.jobs.claim import JobRef, claim_group
from models.jobs.heartbeat import RunReport, beat, report
from models.jobs.settle import Ending
from models.jobs.states import LEGAL_MOVES, FailureClass, JobStatus
from models.store.session import transaction
from tests.support.database_fixture import DatabaseFixture

DONE = Ending(JobStatus.SUCCEEDED, tries_spent=1, result='{"ok": true}')


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    return DatabaseFixture(engine)


def test_a_job_goes_from_submitted_to_succeeded(database: DatabaseFixture) -> None:
    claim = database.start(payload='{"a": [1, 2.5, "ü"]}')
    assert claim.payload == {"a": [1, 2.5, "ü"]}
    assert database.settle(claim.ref, DONE, run_seconds=2.0)
    job = database.job(claim.ref.id)
    assert (job.status, job.attempt, job.result) == ("succeeded", 1, {"ok": True})
    assert job.finished_at - job.started_at == timedelta(seconds=2)
    assert not database.miscounted()


def test_a_redelivered_message_claims_nothing(database: DatabaseFixture) -> None:
    claim = database.start()
    assert database.claim(claim.ref) == ()
    database.settle(claim.ref, DONE)
    assert database.claim(claim.ref) == ()


def test_a_message_twice_in_one_group_is_claimed_once(database: DatabaseFixture) -> None:
    job_id = database.submit()
    (dispatch,) = database.dispatch()
    ref = JobRef(job_id, dispatch.lease)
    first, second = claim_group(database.engine, "w1", [(ref,), (ref,)])
    assert len(first) + len(second) == 1


@pytest.mark.parametrize("lease", [0, 2, 2**31 - 1])
def test_a_forged_lease_number_claims_nothing(database: DatabaseFixture, lease: int) -> None:
    job_id = database.submit()
    database.dispatch()
    assert database.claim(JobRef(job_id, lease)) == ()
    assert database.job(job_id).status == "dispatched"


def test_a_forged_job_id_claims_nothing(database: DatabaseFixture) -> None:
    assert database.claim(JobRef(str(uuid.uuid4()), 1)) == ()


def test_a_stale_worker_cannot_settle_a_reaped_job(database: DatabaseFixture) -> None:
    from app.scheduler.maintenance.reaper import Reaper

    stale = database.start()
    database.expire_leases()
    assert Reaper(database.engine, database.leader, database.types).run_once(0.0) == 1
    assert not database.settle(stale.ref, DONE), "queued again: not ours any more"
    (dispatch,) = database.dispatch()
    (fresh,) = database.claim(JobRef(dispatch.id, dispatch.lease), worker="w2")
    assert not database.settle(stale.ref, DONE), "another worker runs it"
    assert database.settle(
        fresh.ref, Ending(JobStatus.SUCCEEDED, 1, result='"second"'), worker="w2"
    )
    before = database.job(stale.ref.id)
    assert not database.settle(stale.ref, DONE), "another worker finished it"
    assert database.job(stale.ref.id) == before
    assert before.result == "second"


def test_a_stale_worker_cannot_renew_its_lease(database: DatabaseFixture) -> None:
    from app.scheduler.maintenance.reaper import Reaper

    kept, lost = database.start(), database.start()
    database.execute(
        "UPDATE jobs SET lease_expires_at = now() - interval '1 s' WHERE id = %s", lost.ref.id
    )
    Reaper(database.engine, database.leader, database.types).run_once(0.0)
    assert beat(database.engine, "w1", [kept.ref, lost.ref]) == {kept.ref: True}


def test_a_heartbeat_moves_the_lease_of_its_pool(database: DatabaseFixture) -> None:
    claim = database.start(pool="long")
    database.execute("UPDATE jobs SET lease_expires_at = now()")
    beat(database.engine, "w1", [claim.ref])
    (row,) = database.query("SELECT lease_expires_at - now() AS left FROM jobs")
    assert timedelta(seconds=85) < row.left <= timedelta(seconds=90)


def test_a_settled_job_cannot_be_settled_again(database: DatabaseFixture) -> None:
    claim = database.start()
    assert database.settle(claim.ref, DONE)
    assert not database.settle(
        claim.ref, Ending(JobStatus.DEAD, error_class=FailureClass.APP_ERROR)
    )
    assert database.job(claim.ref.id).status == "succeeded"


def test_a_retry_waits_in_the_row(database: DatabaseFixture) -> None:
    claim = database.start()
    ending = Ending(
        JobStatus.SCHEDULED,
        tries_spent=1,
        delay_seconds=30,
        error_class=FailureClass.APP_ERROR,
        error_message="boom",
    )
    assert database.settle(claim.ref, ending)
    job = database.job(claim.ref.id)
    assert (job.status, job.attempt, job.error_class) == ("scheduled", 1, "APP_ERROR")
    assert job.finished_at is None
    assert timedelta(seconds=15) < job.execute_at - datetime.now(UTC) <= timedelta(seconds=30)


def test_a_job_past_its_not_after_expires_at_the_claim(database: DatabaseFixture) -> None:
    job_id = database.submit(not_after=datetime.now(UTC) + timedelta(hours=1))
    (dispatch,) = database.dispatch()
    database.execute("UPDATE jobs SET not_after = now() - interval '1 second'")
    assert database.claim(JobRef(dispatch.id, dispatch.lease)) == ()
    job = database.job(job_id)
    assert job.status == "expired"
    assert job.finished_at is not None
    assert not database.miscounted()


@pytest.mark.parametrize("old", list(JobStatus))
def test_the_database_refuses_exactly_the_moves_the_table_does_not_list(
    database: DatabaseFixture, old: JobStatus
) -> None:
    for new in JobStatus:
        job_id = database.submit()
        database.execute("DELETE FROM jobs")
        database.execute(
            "INSERT INTO jobs (id, tenant_id, status, type, pool, payload)"
            " VALUES (%s, 1, %s, 'echo', 'short', '{}')",
            job_id,
            old,
        )
        if new == old or new in LEGAL_MOVES[old]:
            database.execute("UPDATE jobs SET status = %s", new)
        else:
            with pytest.raises(IntegrityError, match="illegal move"):
                database.execute("UPDATE jobs SET status = %s", new)


def test_scoring_and_settling_are_one_statement(database: DatabaseFixture) -> None:
    job_id = database.submit_application()
    (dispatch,) = database.dispatch()
    (claim,) = database.claim(JobRef(dispatch.id, dispatch.lease))
    ending = Ending(JobStatus.SUCCEEDED, 1, result='{"score": 71.25, "rationale": "fine"}')
    assert database.settle(claim.ref, ending)
    (row,) = database.query("SELECT score, rationale, scored_at FROM applications")
    assert (float(row.score), row.rationale) == (71.25, "fine")
    assert row.scored_at is not None
    stale = Ending(JobStatus.SUCCEEDED, 1, result='{"score": 1, "rationale": "stale"}')
    assert not database.settle(claim.ref, stale)
    (row,) = database.query("SELECT score FROM applications WHERE id = %s", job_id)
    assert float(row.score) == 71.25


def test_a_score_that_cannot_be_stored_leaves_the_job_unsettled(database: DatabaseFixture) -> None:
    database.submit_application()
    (dispatch,) = database.dispatch()
    (claim,) = database.claim(JobRef(dispatch.id, dispatch.lease))
    ending = Ending(JobStatus.SUCCEEDED, 1, result='{"score": "a lot"}')
    with pytest.raises(Exception, match="numeric"):
        database.settle(claim.ref, ending)
    assert database.job(claim.ref.id).status == "running"


def test_a_heartbeat_skips_what_is_locked_and_says_so(database: DatabaseFixture) -> None:
    renewed, locked, lost = (database.start() for _ in range(3))
    database.settle(lost.ref, DONE)
    refs = [claim.ref for claim in (renewed, locked, lost)]
    with transaction(database.engine) as holder:
        holder.exec_driver_sql("SELECT FROM jobs WHERE id = %s FOR UPDATE", (locked.ref.id,))
        assert beat(database.engine, "w1", refs) == {renewed.ref: True, locked.ref: True}, "not due"
    database.expire_leases()
    with transaction(database.engine) as holder:
        holder.exec_driver_sql("SELECT FROM jobs WHERE id = %s FOR UPDATE", (locked.ref.id,))
        assert beat(database.engine, "w1", refs) == {renewed.ref: True, locked.ref: False}
        written = report(database.engine, "w1", [RunReport(ref, '{"done": 1}') for ref in refs])
        assert written == {renewed.ref}
    assert beat(database.engine, "w1", refs) == {renewed.ref: True, locked.ref: True}
    assert report(database.engine, "w1", [RunReport(locked.ref, '{"done": 2}')]) == {locked.ref}
    assert database.job(locked.ref.id).progress == {"done": 2}
