"""Fences of a lease number that was given twice, which no other test would miss."""

from __future__ import annotations

import pytest
from sqlalchemy import Engine

from models.jobs.claim import JobRef, claim_group
from models.jobs.heartbeat import note_begun
from models.jobs.release import HAND_BACK
from tasks.watchdog.emergency_write import connect_arguments, ref_parameters, write_now
from tests.support.database_fixture import DatabaseFixture


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    return DatabaseFixture(engine)


def held_by(database: DatabaseFixture, worker: str) -> JobRef:
    database.submit()
    [dispatch] = database.dispatch()
    ref = JobRef(dispatch.id, dispatch.lease)
    assert database.claim(ref, worker=worker)
    return ref


def test_a_claim_that_is_asked_for_again_is_not_taken_from_another_worker(
    database: DatabaseFixture,
) -> None:
    ref = held_by(database, "new")
    assert claim_group(database.engine, "stale", [(ref,)], unanswered={ref}) == [()]
    assert database.job(ref.id).worker == "new"


def test_a_stale_worker_notes_no_beginning(database: DatabaseFixture) -> None:
    ref = held_by(database, "new")
    database.execute("UPDATE jobs SET waiting_lease = lease")
    assert note_begun(database.engine, "stale", [(ref, 1.0)]) == set()
    assert database.job(ref.id).waiting_lease == ref.lease


def test_a_stale_worker_hands_nothing_back(database: DatabaseFixture) -> None:
    ref = held_by(database, "new")
    parameters = ref_parameters([ref], worker="stale")
    write_now(connect_arguments(database.engine.url), [(HAND_BACK, parameters)])
    assert database.job(ref.id).status == "running"
