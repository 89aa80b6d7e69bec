"""Suspended tenants wait and come back; deleted ones go with everything they have."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from app.admission.submission_limits import SubmissionLimits
from app.admission.tenant_limits import TenantLimits
from app.errors import Conflict, NotFound
from app.policy.wait_reasons import WaitReason, explain
from app.reads.waits import read_facts
from app.scheduler.maintenance.tenant_remover import TenantRemover
from app.tenants.changes import create_tenant, issue_key
from app.tenants.suspension import delete_tenant, resume_tenant, suspend_tenant
from models.blobs import BlobStore, open_blobs, payload_key
from models.job_counts import MOST_TURNS, CountFolder
from models.jobs import remove_tenant as removing
from models.jobs.claim import JobRef
from models.jobs.erase import request_erasure
from models.jobs.ids import new_id
from models.jobs.settle import Ending
from models.jobs.states import JobStatus
from models.presence import Presence, announce
from models.schema import Base
from models.store.session import connect
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import emptied

SCORED = Ending(JobStatus.SUCCEEDED, 1, result='{"score": 50, "rationale": "x"}')


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    found = emptied(api_database)
    found.execute("DELETE FROM tenants WHERE id > 1")
    return found


@pytest.fixture
def acme(database: DatabaseFixture) -> int:
    return create_tenant(database.engine, "acme").id


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return open_blobs(f"file://{tmp_path}")


@pytest.fixture
def remover(database: DatabaseFixture, blobs: BlobStore) -> TenantRemover:
    return TenantRemover(database.engine, database.leader, blobs)


def add_worker(database: DatabaseFixture) -> None:
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=10))
    database.keep_present()


def statuses(database: DatabaseFixture) -> dict[int, str]:
    rows = database.query("SELECT tenant_id, status::text AS status FROM jobs ORDER BY id")
    return {row.tenant_id: row.status for row in rows}


def reason(database: DatabaseFixture, job_id: str) -> WaitReason:
    with connect(database.engine) as connection:
        found = read_facts(connection, job_id)
    assert found is not None
    told = explain(found.facts)
    assert told.forecast is None or told.reason is not WaitReason.SUSPENDED
    return told.reason


def test_queued_jobs_of_a_suspended_tenant_stay_until_it_is_resumed(
    database: DatabaseFixture, acme: int
) -> None:
    add_worker(database)
    broker = FakePublisher()
    dispatcher = database.dispatcher(broker)
    suspend_tenant(database.engine, "acme")
    job_id = database.submit(tenant_id=acme)
    database.submit(tenant_id=1)
    for turn in range(3):
        dispatcher.run_once(10.0 * turn)
    assert statuses(database) == {acme: "queued", 1: "dispatched"}
    assert reason(database, job_id) is WaitReason.SUSPENDED
    resume_tenant(database.engine, "acme")
    for turn in range(3):
        dispatcher.run_once(100.0 + 10.0 * turn)
    assert statuses(database) == {acme: "dispatched", 1: "dispatched"}


def test_a_throttled_tenant_is_suspended_all_the_same(database: DatabaseFixture, acme: int) -> None:
    add_worker(database)
    database.execute(
        "INSERT INTO verdicts (kind, tenant_id, pool) VALUES ('throttle', %s, 'medium')", acme
    )
    suspend_tenant(database.engine, "acme")
    job_id = database.submit(tenant_id=acme)
    database.dispatcher(FakePublisher()).run_once(0.0)
    assert statuses(database) == {acme: "queued"}
    assert reason(database, job_id) is WaitReason.SUSPENDED


def test_ticks_and_replays_of_a_suspended_tenant_wait(database: DatabaseFixture, acme: int) -> None:
    limits = TenantLimits(
        database.engine, SubmissionLimits(per_second=None, burst=0.0, queue_depth=100)
    )
    wanted = {(acme, "medium"): 2, (1, "medium"): 3}
    suspend_tenant(database.engine, "acme")
    taken = limits.take(wanted)
    assert taken.jobs == {(acme, "medium"): 0, (1, "medium"): 3}
    assert {of: hold.code for of, hold in taken.held.items()} == {acme: "TENANT_SUSPENDED"}
    resume_tenant(database.engine, "acme")
    assert limits.take(wanted).jobs == wanted


def test_a_tenant_that_is_being_deleted_is_not_resumed(
    database: DatabaseFixture, acme: int
) -> None:
    delete_tenant(database.engine, "acme")
    with pytest.raises(Conflict):
        resume_tenant(database.engine, "acme")
    for change in (suspend_tenant, resume_tenant, delete_tenant):
        with pytest.raises(NotFound):
            change(database.engine, "nobody")


def score(database: DatabaseFixture) -> None:
    """Whatever waits is scored."""
    [claim] = database.claim(*[JobRef(one.id, one.lease) for one in database.dispatch()])
    assert database.settle(claim.ref, SCORED)


def fill(database: DatabaseFixture, tenant_id: int, blobs: BlobStore) -> str:
    """Something of a tenant in every table that has its rows; the id of a run."""
    large = new_id()
    blobs.put(payload_key(large), b"large")
    database.submit_application(tenant_id=tenant_id, id=large, payload_blob=payload_key(large))
    score(database)
    retired = database.submit_application(tenant_id=tenant_id)
    score(database)
    database.execute("DELETE FROM jobs WHERE id = %s", retired)
    erased = database.submit_application(tenant_id=tenant_id)
    assert request_erasure(database.engine, tenant_id, erased) is not None
    running = database.start(tenant_id=tenant_id).ref.id
    database.submit(tenant_id=tenant_id, execute_at=datetime.now(UTC) + timedelta(days=1))
    for statement in (
        "INSERT INTO events (tenant_id, kind) VALUES (%s, 'x')",
        "INSERT INTO idempotency_keys (tenant_id, key, digest, job_ids) VALUES (%s, 'k', '', '{}')",
        "INSERT INTO schedules (id, tenant_id, name, cron, timezone, overlap, catch_up, type,"
        " payload) VALUES (gen_random_uuid(), %s, 'n', '* * * * *', 'UTC', 'allow', 'one', 'echo',"
        " 'null')",
        "INSERT INTO replays (id, tenant_id, digest, before, position)"
        " VALUES (gen_random_uuid(), %s, 'd', now(), gen_random_uuid())",
        "INSERT INTO tenant_limits (tenant_id, pool, depth) VALUES (%s, 'medium', 1000)",
        "INSERT INTO rate_buckets (tenant_id) VALUES (%s)",
        "INSERT INTO blob_counts (tenant_id, bytes, counted_at) VALUES (%s, 1, now())",
        "INSERT INTO refusals (tenant_id, day, code) VALUES (%s, current_date, 'X')",
        "INSERT INTO verdicts (kind, tenant_id) VALUES ('spike', %s)",
        "INSERT INTO shares (tenant_id, pool, pass, counted_day, counted_seconds, weight)"
        " VALUES (%s, 'medium', 0, current_date, 0, 1)",
    ):
        with database.engine.connect() as connection:
            connection.exec_driver_sql(statement, (tenant_id,))
    return running


#: What says that a tenant lives in another cell stays for good: see `models.cells.away`. What is
#: taken in for other cells goes when it is handed over.
NAMED = {name for name, table in Base.metadata.tables.items() if "tenant_id" in table.c}
NAMED -= {"away_tenants", "intake_jobs"}


def tables_of(database: DatabaseFixture, tenant_id: int) -> set[str]:
    """Tables with rows of the tenant."""
    return {
        name
        for name in NAMED
        if database.query(f"SELECT FROM {name} WHERE tenant_id = %s LIMIT 1", tenant_id)
    }


def test_a_deleted_tenant_goes_with_everything_and_no_other_with_it(
    database: DatabaseFixture, remover: TenantRemover, blobs: BlobStore, acme: int, tmp_path: Path
) -> None:
    issue_key(database.engine, "acme")
    running = fill(database, acme, blobs)
    fill(database, 1, blobs)
    folder = CountFolder(database.engine)
    for _ in range(MOST_TURNS + 2):
        folder.run_once(0.0)
    database.submit(tenant_id=acme)
    assert tables_of(database, acme) == NAMED, "or the test misses a table"
    others = {name: count_of(database, name) for name in tables_of(database, 1)}
    delete_tenant(database.engine, "acme")
    assert not database.query("SELECT FROM api_keys WHERE revoked_at IS NULL")
    assert remover.run_once(0.0) == 0, "API processes have time to notice"
    database.execute("UPDATE tenants SET deleted_at = now() - interval '1 minute' WHERE id > 1")
    for turn in range(4):
        remover.run_once(float(turn))
    assert tables_of(database, acme) <= {"jobs", "arrivals", "api_keys", *COUNTS, "usage"}
    assert database.job(running).cancel_requested_at is not None, "it is waited for"
    assert database.settle(JobRef(running, database.job(running).lease), SCORED)
    for turn in range(4):
        remover.run_once(10.0 + turn)
    assert tables_of(database, acme) == set()
    assert not database.query("SELECT FROM tenants WHERE name = 'acme'")
    assert {name: count_of(database, name) for name in others} == others
    assert len([path for path in tmp_path.rglob("*") if path.is_file()]) == 1, "the other's blob"
    create_tenant(database.engine, "acme")


COUNTS = ("job_count_deltas", "job_count_sums", "job_count_keys")


def count_of(database: DatabaseFixture, table: str) -> Any:
    return database.query(f"SELECT count(*) AS rows FROM {table} WHERE tenant_id = 1")[0].rows


def test_a_removal_has_bounded_batches_and_any_leader_goes_on(
    database: DatabaseFixture, blobs: BlobStore, acme: int
) -> None:
    for _ in range(removing.BATCH + 20):
        database.submit(tenant_id=acme)
    delete_tenant(database.engine, "acme")
    database.execute("UPDATE tenants SET deleted_at = now() - interval '1 minute' WHERE id > 1")
    left = []
    for turn in range(4):
        TenantRemover(database.engine, database.leader, blobs).run_once(float(turn))
        left.append(database.query("SELECT count(*) AS rows FROM jobs")[0].rows)
    assert left == [20, 0, 0, 0]
    assert not database.query("SELECT FROM tenants WHERE name = 'acme'")
    [total] = database.query("SELECT sum(cancelled) AS ended FROM job_counts WHERE tenant_id = 0")
    assert total.ended == removing.BATCH + 20, "totals do not fall"


def test_a_deposed_leader_removes_nothing(
    database: DatabaseFixture, remover: TenantRemover, acme: int
) -> None:
    database.submit(tenant_id=acme)
    delete_tenant(database.engine, "acme")
    database.execute("UPDATE tenants SET deleted_at = now() - interval '1 minute' WHERE id > 1")
    database.execute("UPDATE leaders SET epoch = epoch + 1")
    remover.run_once(0.0)
    assert statuses(database) == {acme: "queued"}
