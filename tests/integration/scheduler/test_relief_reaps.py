"""Without a scheduler, what lost its worker and what falls due runs all the same."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from app.scheduler.relief import Relief
from models.jobs.promote import PROMOTE_BY_TENANT_IF, PROMOTE_IF
from models.jobs.reap import FIND_LOST_IF
from models.leadership import LEAD, ReliefLease
from models.presence import Presence, announce
from models.store.session import execute, fetch
from tests.integration.scheduler.test_lost_workers import LOOKS, beat, run
from tests.integration.scheduler.test_relief import Broker, silence
from tests.support.database_fixture import DatabaseFixture

NOBODY_HOLDS_IT = {"lanes": [], "tenants": [], "free_full": False, "pool": "medium"}
#: The statements of a relief beside its dispatch, their parameters, and the rows of an answer if
#: they change nothing: one of them answers with a count.
STATEMENTS = [
    (PROMOTE_IF, {**NOBODY_HOLDS_IT, "room": 5, "most": 5}, 0),
    (PROMOTE_BY_TENANT_IF, {**NOBODY_HOLDS_IT, "room": 5, "after": -1}, 1),
    (FIND_LOST_IF, {"silent": [], "early": False, "stuck": []}, 0),
]


@pytest.fixture
def broker() -> Broker:
    return Broker()


@pytest.fixture
def relief(database: DatabaseFixture, broker: Broker) -> Iterator[Relief]:
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=10))
    relief = Relief(database.engine, broker, "api-1", database.types, wait_seconds=0)
    yield relief
    relief.end()


def due(database: DatabaseFixture) -> str:
    """A scheduled job that has fallen due."""
    job_id = database.submit(execute_at=datetime.now(UTC) + timedelta(hours=1))
    database.execute("UPDATE jobs SET execute_at = now() WHERE id = %s", job_id)
    return job_id


def test_lost_run_and_due_job_run_without_a_scheduler(
    database: DatabaseFixture, relief: Relief, broker: Broker
) -> None:
    scheduled, killed, silent = due(database), run(database, "w2"), run(database, "w3")
    beat(database, "w3")
    database.execute(
        "UPDATE jobs SET lease_expires_at = now() - interval '1 s' WHERE id = %s", killed
    )
    silence(database, 61)
    for second in range(LOOKS + 1):
        announce(database.engine, Presence("w1", "worker", ["medium"], slots=10))
        beat(database, "w4")
        relief.run_once(float(second))
    assert {sent.id for sent in broker.sent} == {scheduled, killed, silent}
    assert [database.job(job_id).crashes for job_id in (scheduled, killed, silent)] == [0, 1, 1]
    assert not database.miscounted()


def test_neither_beside_a_leader(database: DatabaseFixture, relief: Relief) -> None:
    due(database), run(database)
    database.expire_leases()
    relief.run_once(0.0)
    rows = database.query("SELECT status::text FROM jobs ORDER BY 1")
    assert [row.status for row in rows] == ["running", "scheduled"]


@pytest.mark.parametrize(
    ("statement", "parameters", "rows"), STATEMENTS, ids=["promote", "promote by tenant", "reap"]
)
def test_statement_that_meets_a_takeover_changes_nothing(
    database: DatabaseFixture,
    relief: Relief,
    statement: str,
    parameters: dict[str, object],
    rows: int,
) -> None:
    run(database)
    database.submit(execute_at=datetime.now(UTC) + timedelta(hours=1))
    silence(database, 61)
    relief.run_once(0.0)
    assert relief.active
    database.expire_leases()
    database.execute("UPDATE jobs SET execute_at = now() WHERE status = 'scheduled'")
    sql = statement.format(condition=ReliefLease.condition)
    given = {**parameters, "epoch": relief._lease.epoch}
    told: list[int] = []
    with database.engine.connect() as connection:
        scoped = connection.execution_options(isolation_level="READ COMMITTED")
        with scoped.begin():
            scoped.exec_driver_sql(LEAD, {"holder": "back", "broker_seen": True})
            turn = threading.Thread(
                target=lambda: told.append(execute(database.engine, sql, given))
            )
            turn.start()
            database.wait_until_waiting()
        turn.join(10)
    assert told == [rows]
    assert not fetch(database.engine, "SELECT FROM jobs WHERE status = 'queued'")
