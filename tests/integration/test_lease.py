"""Fenced leases: who lost a lease writes nothing, and no message runs anything twice."""

from __future__ import annotations

import uuid
from datetime import UTC, datetime, timedelta

import pytest
from sqlalchemy import Engine
from sqlalchemy.exc import IntegrityError

from models.jobs.claim import JobRef, claim_group
from models.jobs.heartbeat import beat
from models.jobs.settle import Ending
from models.jobs.states import LEGAL_MOVES, FailureClass, JobStatus
from tests.integration.house import House

DONE = Ending(JobStatus.SUCCEEDED, tries_spent=1, result='{"ok": true}')


@pytest.fixture
def house(engine: Engine) -> House:
    return House(engine)


def test_a_job_goes_from_submitted_to_succeeded(house: House) -> None:
    claim = house.start(payload='{"a": [1, 2.5, "ü"]}')
    assert claim.payload == {"a": [1, 2.5, "ü"]}
    assert house.settle(claim.ref, DONE, run_seconds=2.0)
    job = house.job(claim.ref.id)
    assert (job.status, job.attempt, job.result) == ("succeeded", 1, {"ok": True})
    assert job.finished_at - job.started_at == timedelta(seconds=2)
    assert not house.miscounted()


def test_a_redelivered_message_claims_nothing(house: House) -> None:
    claim = house.start()
    assert house.claim(claim.ref) == ()
    house.settle(claim.ref, DONE)
    assert house.claim(claim.ref) == ()


def test_a_message_twice_in_one_group_is_claimed_once(house: House) -> None:
    job_id = house.submit()
    (dispatch,) = house.dispatch()
    ref = JobRef(job_id, dispatch.lease)
    first, second = claim_group(house.engine, "w1", [(ref,), (ref,)])
    assert len(first) + len(second) == 1


@pytest.mark.parametrize("lease", [0, 2, 2**31 - 1])
def test_a_forged_lease_number_claims_nothing(house: House, lease: int) -> None:
    job_id = house.submit()
    house.dispatch()
    assert house.claim(JobRef(job_id, lease)) == ()
    assert house.job(job_id).status == "dispatched"


def test_a_forged_job_id_claims_nothing(house: House) -> None:
    assert house.claim(JobRef(str(uuid.uuid4()), 1)) == ()


def test_a_stale_worker_cannot_settle_a_reaped_job(house: House) -> None:
    from app.scheduler.maintenance.reaper import Reaper

    stale = house.start()
    house.expire_leases()
    assert Reaper(house.engine, house.leader, house.types).run_once(0.0) == 1
    assert not house.settle(stale.ref, DONE), "queued again: not ours any more"
    (dispatch,) = house.dispatch()
    (fresh,) = house.claim(JobRef(dispatch.id, dispatch.lease), worker="w2")
    assert not house.settle(stale.ref, DONE), "another worker runs it"
    assert house.settle(fresh.ref, Ending(JobStatus.SUCCEEDED, 1, result='"second"'))
    before = house.job(stale.ref.id)
    assert not house.settle(stale.ref, DONE), "another worker finished it"
    assert house.job(stale.ref.id) == before
    assert before.result == "second"


def test_a_stale_worker_cannot_renew_its_lease(house: House) -> None:
    from app.scheduler.maintenance.reaper import Reaper

    kept, lost = house.start(), house.start()
    house.execute(
        "UPDATE jobs SET lease_expires_at = now() - interval '1 s' WHERE id = %s", lost.ref.id
    )
    Reaper(house.engine, house.leader, house.types).run_once(0.0)
    assert beat(house.engine, [kept.ref, lost.ref]) == {kept.ref}


def test_a_heartbeat_moves_the_lease_of_its_pool(house: House) -> None:
    claim = house.start(pool="long")
    house.execute("UPDATE jobs SET lease_expires_at = now()")
    beat(house.engine, [claim.ref])
    (row,) = house.query("SELECT lease_expires_at - now() AS left FROM jobs")
    assert timedelta(seconds=85) < row.left <= timedelta(seconds=90)


def test_a_settled_job_cannot_be_settled_again(house: House) -> None:
    claim = house.start()
    assert house.settle(claim.ref, DONE)
    assert not house.settle(claim.ref, Ending(JobStatus.DEAD, error_class=FailureClass.APP_ERROR))
    assert house.job(claim.ref.id).status == "succeeded"


def test_a_retry_waits_in_the_row(house: House) -> None:
    claim = house.start()
    ending = Ending(
        JobStatus.SCHEDULED,
        tries_spent=1,
        delay_seconds=30,
        error_class=FailureClass.APP_ERROR,
        error_message="boom",
    )
    assert house.settle(claim.ref, ending)
    job = house.job(claim.ref.id)
    assert (job.status, job.attempt, job.error_class) == ("scheduled", 1, "APP_ERROR")
    assert job.finished_at is None
    assert timedelta(seconds=28) < job.execute_at - datetime.now(UTC) <= timedelta(seconds=30)


def test_a_job_past_its_not_after_expires_at_the_claim(house: House) -> None:
    job_id = house.submit(not_after=datetime.now(UTC) + timedelta(hours=1))
    (dispatch,) = house.dispatch()
    house.execute("UPDATE jobs SET not_after = now() - interval '1 second'")
    assert house.claim(JobRef(dispatch.id, dispatch.lease)) == ()
    job = house.job(job_id)
    assert job.status == "expired"
    assert job.finished_at is not None
    assert not house.miscounted()


@pytest.mark.parametrize("old", list(JobStatus))
def test_the_database_refuses_exactly_the_moves_the_table_does_not_list(
    house: House, old: JobStatus
) -> None:
    for new in JobStatus:
        job_id = house.submit()
        house.execute("DELETE FROM jobs")
        house.execute(
            "INSERT INTO jobs (id, tenant_id, status, type, pool, payload)"
            " VALUES (%s, 1, %s, 'echo', 'short', '{}')",
            job_id,
            old,
        )
        if new == old or new in LEGAL_MOVES[old]:
            house.execute("UPDATE jobs SET status = %s", new)
        else:
            with pytest.raises(IntegrityError, match="illegal move"):
                house.execute("UPDATE jobs SET status = %s", new)


def test_scoring_and_settling_are_one_statement(house: House) -> None:
    job_id = house.submit_application()
    (dispatch,) = house.dispatch()
    (claim,) = house.claim(JobRef(dispatch.id, dispatch.lease))
    ending = Ending(JobStatus.SUCCEEDED, 1, result='{"score": 71.25, "rationale": "fine"}')
    assert house.settle(claim.ref, ending)
    (row,) = house.query("SELECT score, rationale, scored_at FROM applications")
    assert (float(row.score), row.rationale) == (71.25, "fine")
    assert row.scored_at is not None
    stale = Ending(JobStatus.SUCCEEDED, 1, result='{"score": 1, "rationale": "stale"}')
    assert not house.settle(claim.ref, stale)
    (row,) = house.query("SELECT score FROM applications WHERE id = %s", job_id)
    assert float(row.score) == 71.25


def test_a_score_that_cannot_be_stored_leaves_the_job_unsettled(house: House) -> None:
    house.submit_application()
    (dispatch,) = house.dispatch()
    (claim,) = house.claim(JobRef(dispatch.id, dispatch.lease))
    ending = Ending(JobStatus.SUCCEEDED, 1, result='{"score": "a lot"}')
    with pytest.raises(Exception, match="numeric"):
        house.settle(claim.ref, ending)
    assert house.job(claim.ref.id).status == "running"
