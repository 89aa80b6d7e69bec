"""Nothing of an erased application is left, whatever state it was in and whoever died meanwhile."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from app.scheduler.maintenance import eraser as eraser_module
from app.scheduler.maintenance.eraser import Eraser
from models.blobs import BlobError, BlobMissing, BlobStore, checkpoint_key, open_blobs, payload_key
from models.jobs import erase
from models.jobs.admit import admit_group
from models.jobs.checkpoint import Saving, save_group
from models.jobs.claim import Claim, JobRef
from models.jobs.erase import continue_erasure, request_erasure
from models.jobs.ids import new_id
from models.jobs.replay import replay_dead
from models.jobs.run_logs import Logged, keep_logs
from models.jobs.settle import Ending
from models.jobs.states import LIVE, FailureClass, JobStatus
from models.jobs.submission import IdempotencyKey, Submission, SubmissionGroup
from models.schema import Base
from models.store.session import transaction
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied

#: A word that nothing but the application contains.
NAME = "Zaphod"
SCORED = Ending(
    JobStatus.SUCCEEDED, 1, result=f'{{"score": 50, "rationale": "{NAME} is", "evidence": {{}}}}'
)
DEAD = Ending(
    JobStatus.DEAD, 1, error_class=FailureClass.APP_ERROR, error_message=f"no {NAME} here"
)


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return open_blobs(f"file://{tmp_path}")


@pytest.fixture
def eraser(database: DatabaseFixture, blobs: BlobStore) -> Eraser:
    return Eraser(database.engine, database.leader, blobs)


def rows_about(database: DatabaseFixture, word: str) -> set[str]:
    """The tables with a row that contains the word, in any column."""
    return {
        name
        for name in Base.metadata.tables
        if name != "erasures"
        and database.query(f"SELECT FROM {name} AS it WHERE it::text LIKE %s LIMIT 1", f"%{word}%")
    }


def assert_erased(database: DatabaseFixture, job_id: str) -> None:
    assert rows_about(database, NAME) == set()
    # By its id alone; arrivals are removed by a scheduler, which the test has none of.
    assert rows_about(database, job_id) <= {"idempotency_keys", "arrivals"}
    [row] = database.query("SELECT tenant_id, erased_at, blobs FROM erasures WHERE id = %s", job_id)
    assert (row.tenant_id, row.blobs) == (1, [])
    assert row.erased_at is not None
    # Counts of ended jobs only grow.
    assert not [row for row in database.miscounted() if row.status in LIVE]


def start(database: DatabaseFixture) -> Claim:
    """An application that is being scored."""
    job_id = database.submit_application(NAME)
    [claim] = database.claim(*[JobRef(one.id, one.lease) for one in database.dispatch()])
    assert claim.ref.id == job_id
    return claim


def bring(database: DatabaseFixture, state: str) -> str:
    """An application in this state."""
    if state in ("queued", "scheduled"):
        later = "now() + interval '1 day'" if state == "scheduled" else "NULL"
        [row] = database.query(f"SELECT {later} AS at")
        return database.submit_application(NAME, execute_at=row.at)
    if state == "dispatched":
        job_id = database.submit_application(NAME)
        assert database.dispatch()
        return job_id
    claim = start(database)
    if state == "cancelled":
        database.execute("UPDATE jobs SET cancel_requested_at = now()")
    assert database.settle(claim.ref, DEAD if state in ("dead", "cancelled") else SCORED)
    if state == "retired":
        database.execute("DELETE FROM jobs WHERE id = %s", claim.ref.id)
    return claim.ref.id


@pytest.mark.parametrize(
    "state",
    ["scheduled", "queued", "dispatched", "succeeded", "retired", "dead", "cancelled"],
)
def test_nothing_is_left_in_any_state_that_is_no_run(database: DatabaseFixture, state: str) -> None:
    job_id = bring(database, state)
    assert rows_about(database, NAME)
    state_after = request_erasure(database.engine, 1, job_id)
    assert state_after is not None
    assert state_after.erased_at is not None
    assert_erased(database, job_id)
    again = request_erasure(database.engine, 1, job_id)
    assert again == state_after, "a repetition changes nothing"


def test_totals_do_not_fall_when_a_waiting_application_is_erased(database: DatabaseFixture) -> None:
    job_id = database.submit_application(NAME)
    request_erasure(database.engine, 1, job_id)
    [row] = database.query("SELECT queued, cancelled FROM job_counts WHERE tenant_id = 1")
    assert tuple(row) == (0, 1)


def test_a_stranger_erases_nothing_and_an_operator_anything(database: DatabaseFixture) -> None:
    job_id = database.submit_application(NAME)
    assert request_erasure(database.engine, 2, job_id) is None
    assert request_erasure(database.engine, None, new_id()) is None
    assert rows_about(database, NAME) == {"jobs", "applications"}
    assert request_erasure(database.engine, None, job_id) is not None
    assert request_erasure(database.engine, 2, job_id) is None, "nor does it learn of it"
    assert_erased(database, job_id)


def test_a_plain_job_is_no_application(database: DatabaseFixture) -> None:
    assert request_erasure(database.engine, 1, database.submit()) is None


@pytest.mark.parametrize("ending", [SCORED, DEAD], ids=["scored", "failed"])
def test_a_run_is_emptied_at_once_and_its_late_end_brings_nothing_back(
    database: DatabaseFixture, eraser: Eraser, ending: Ending
) -> None:
    claim = start(database)
    state = request_erasure(database.engine, 1, claim.ref.id)
    assert state is not None
    assert state.erased_at is None
    assert rows_about(database, NAME) == set(), "emptied while it runs"
    assert database.job(claim.ref.id).cancel_requested_at is not None
    assert keep_logs(database.engine, "w1", [(claim.ref, Logged(f'["{NAME}"]'))])
    assert database.settle(claim.ref, ending)
    assert "jobs" in rows_about(database, NAME), "the run writes what it has"
    assert "applications" not in rows_about(database, NAME)
    eraser.run_once(0.0)
    assert_erased(database, claim.ref.id)
    assert not database.settle(claim.ref, ending)
    assert_erased(database, claim.ref.id)
    [used] = database.query("SELECT sum(runs) AS runs FROM usage WHERE tenant_id = 1")
    assert used.runs == 1, "the run is paid for"


def test_a_run_that_is_lost_is_erased_when_it_is_reaped(
    database: DatabaseFixture, eraser: Eraser
) -> None:
    claim = start(database)
    request_erasure(database.engine, 1, claim.ref.id)
    eraser.run_once(0.0)
    assert database.job(claim.ref.id).status == "running"
    database.execute("UPDATE jobs SET status = 'cancelled', finished_at = now()")
    assert eraser.run_once(1.0) == 0, "it pauses in between"
    database.execute("UPDATE erasures SET due_at = now()")
    eraser.run_once(6.0)
    assert_erased(database, claim.ref.id)


def test_an_end_that_commits_during_the_erasure_leaves_no_attempt(
    database: DatabaseFixture,
) -> None:
    claim = start(database)
    with transaction(database.engine) as ending:
        ending.exec_driver_sql("UPDATE jobs SET status = 'dead', finished_at = now()")
        ending.exec_driver_sql(
            "INSERT INTO attempts (job_id, lease, status, error_message)"
            " VALUES (%s, 1, 'dead', %s)",
            (claim.ref.id, NAME),
        )
        erasing = threading.Thread(
            target=request_erasure, args=(database.engine, 1, claim.ref.id), daemon=True
        )
        erasing.start()
        database.wait_until_waiting()
    erasing.join(10)
    assert_erased(database, claim.ref.id)


def test_attempts_logs_checkpoints_and_replay_events_are_removed(
    database: DatabaseFixture, eraser: Eraser, blobs: BlobStore
) -> None:
    claim = start(database)
    key = checkpoint_key(claim.ref.id, 1, 1)
    blobs.put(key, NAME.encode())
    assert save_group(database.engine, "w1", [Saving(claim.ref, None, key)])[0].ours
    assert keep_logs(database.engine, "w1", [(claim.ref, Logged(f'["{NAME}"]'))])
    assert database.settle(claim.ref, DEAD)
    assert replay_dead(database.engine, 1, [claim.ref.id])
    kinds = {"jobs", "applications", "attempts", "run_logs", "events"}
    assert rows_about(database, NAME) == kinds
    state = request_erasure(database.engine, 1, claim.ref.id)
    assert state is not None
    assert state.blobs == (key,)
    assert state.erased_at is None, "not before its blob is gone"
    eraser.run_once(0.0)
    with pytest.raises(BlobMissing):
        blobs.get(key)
    assert_erased(database, claim.ref.id)


class StoreAway(BlobError):
    """The store is away."""


def test_blobs_are_deleted_when_the_store_is_back(
    database: DatabaseFixture, eraser: Eraser, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = new_id()
    key = payload_key(job_id)
    blobs.put(key, NAME.encode())
    database.submit_application(NAME, id=job_id, payload_blob=key)
    request_erasure(database.engine, 1, job_id)

    def away(_: str) -> None:
        raise StoreAway("away")

    with monkeypatch.context() as store:
        store.setattr(type(blobs), "delete", lambda _, key: away(key))
        eraser.run_once(0.0)
    [row] = database.query("SELECT blobs, erased_at, due_at > now() AS later FROM erasures")
    assert (row.blobs, row.erased_at, row.later) == ([key], None, True)
    database.execute("UPDATE erasures SET due_at = now()")
    eraser.run_once(6.0)
    with pytest.raises(BlobMissing):
        blobs.get(key)
    assert_erased(database, job_id)


def test_an_erasure_that_died_before_its_commit_changed_nothing(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = bring(database, "dead")
    before = rows_about(database, NAME)
    with monkeypatch.context() as dying:
        dying.setattr(erase, "NOTE", "SELECT 1/0")
        with pytest.raises(Exception, match="division by zero"):
            request_erasure(database.engine, 1, job_id)
    assert rows_about(database, NAME) == before
    assert not database.query("SELECT FROM erasures")


def test_an_erasure_that_was_only_requested_is_finished_by_the_scheduler(
    database: DatabaseFixture, eraser: Eraser
) -> None:
    job_id = bring(database, "succeeded")
    database.execute("INSERT INTO erasures (id, tenant_id) VALUES (%s, 1)", job_id)
    eraser.run_once(0.0)
    assert_erased(database, job_id)


def test_a_row_that_somebody_has_locked_holds_up_no_other_erasure(
    database: DatabaseFixture, eraser: Eraser
) -> None:
    locked, other = (database.submit_application(NAME) for _ in range(2))
    for job_id in (locked, other):
        database.execute("INSERT INTO erasures (id, tenant_id) VALUES (%s, 1)", job_id)
    with transaction(database.engine) as holder:
        holder.exec_driver_sql("SELECT FROM jobs WHERE id = %s FOR UPDATE", (locked,))
        eraser.run_once(0.0)
        rows = database.query("SELECT id::text AS id FROM erasures WHERE erased_at IS NULL")
        assert [row.id for row in rows] == [locked]
        assert eraser.run_once(1.0) == 0, "it is put off"
    database.execute("UPDATE erasures SET due_at = now() WHERE id = %s", locked)
    eraser.run_once(6.0)
    for job_id in (locked, other):
        assert_erased(database, job_id)


def test_a_submission_that_is_repeated_after_a_lost_answer_is_erased_again(
    database: DatabaseFixture, eraser: Eraser
) -> None:
    job_id = database.submit_application(NAME)
    request_erasure(database.engine, 1, job_id)
    database.submit_application(NAME, id=job_id)
    assert rows_about(database, NAME), "as the API writes a group again"
    database.execute(
        "UPDATE erasures SET due_at = now(), requested_at = now() - interval '61 seconds'"
    )
    eraser.run_once(60.0)
    assert_erased(database, job_id)
    [row] = database.query("SELECT due_at FROM erasures")
    assert row.due_at is None, "then it is done with"


def test_key_of_the_submission_stays_used_without_its_digest(database: DatabaseFixture) -> None:
    def submit(digest: bytes) -> object:
        work = Submission(
            new_id(), 1, "score_application", "medium", "{}", candidate=NAME, role="general"
        )
        group = SubmissionGroup((work,), IdempotencyKey("once", digest))
        return admit_group(database.engine, [group], False)[0]

    first = submit(b"of Zaphod")
    [job] = database.query("SELECT id::text AS id FROM jobs")
    request_erasure(database.engine, 1, job.id)
    [key] = database.query("SELECT digest FROM idempotency_keys")
    assert bytes(key.digest) == b""
    assert type(submit(b"of Zaphod")) is not type(first), "a late repetition is refused"
    assert_erased(database, job.id)


def test_a_copy_with_an_edited_payload_is_erased_too(
    database: DatabaseFixture, eraser: Eraser
) -> None:
    job_id = bring(database, "dead")
    copy = database.submit(payload=f'"{NAME}"', resubmitted_from=job_id)
    copy_of_copy = database.submit(payload=f'"{NAME}"', resubmitted_from=copy)
    foreign = database.submit(tenant_id=2, resubmitted_from=job_id)
    request_erasure(database.engine, 1, job_id)
    for turn in range(3):
        eraser.run_once(float(turn))
    assert rows_about(database, NAME) == set()
    for erased in (job_id, copy, copy_of_copy):
        assert continue_erasure(database.engine, erased, 1.0) is not None
    assert database.job(foreign).status == "queued"


def add_copies(database: DatabaseFixture, origin: str, count: int) -> None:
    """Jobs that were submitted in the place of an application."""
    database.execute(
        """
        INSERT INTO jobs (id, tenant_id, type, pool, payload, status, resubmitted_from)
        SELECT gen_random_uuid(), 1, 'echo', 'medium', %s, 'cancelled', %s::uuid
        FROM generate_series(1, %s)""",
        f'"{NAME}"',
        origin,
        count,
    )


def test_many_copies_are_erased_a_number_at_a_time_and_the_application_with_the_last(
    database: DatabaseFixture, eraser: Eraser
) -> None:
    job_id = bring(database, "dead")
    add_copies(database, job_id, 2_500)
    state = request_erasure(database.engine, 1, job_id)
    assert state is not None
    assert state.erased_at is None, "copies are left that nobody has asked to erase"
    requested = "SELECT count(*) AS erasures FROM erasures WHERE id <> %s"
    assert database.query(requested, job_id)[0].erasures == 1_000
    assert not database.query("SELECT FROM jobs WHERE id = %s", job_id), "it is gone all the same"
    for erasures in (2_000, 2_500):
        database.execute("UPDATE erasures SET due_at = NULL WHERE id <> %s", job_id)
        database.execute("UPDATE erasures SET due_at = now() WHERE id = %s", job_id)
        eraser.run_once(0.0)
        assert database.query(requested, job_id)[0].erasures == erasures
    [row] = database.query("SELECT erased_at FROM erasures WHERE id = %s", job_id)
    assert row.erased_at is not None


def request_many(database: DatabaseFixture, tenant_id: int, count: int, age: int) -> None:
    """Erasures that are due for so many seconds."""
    database.execute(
        """
        INSERT INTO erasures (id, tenant_id, due_at)
        SELECT gen_random_uuid(), %s, now() - make_interval(secs => %s)
        FROM generate_series(1, %s)""",
        tenant_id,
        age,
        count,
    )


def finished_of(database: DatabaseFixture, tenant_id: int) -> int:
    """Erasures of a tenant that were looked at and are done."""
    [row] = database.query(
        "SELECT count(erased_at) AS done FROM erasures WHERE tenant_id = %s", tenant_id
    )
    return int(row.done)


def test_many_erasures_of_a_tenant_do_not_hold_up_those_of_others(
    database: DatabaseFixture, eraser: Eraser
) -> None:
    request_many(database, 1, 2 * erase.BATCH, age=60)
    request_many(database, 2, 3, age=30)
    request_many(database, 3, 1, age=0)
    assert eraser.run_once(0.0) == erase.BATCH
    assert (finished_of(database, 2), finished_of(database, 3)) == (3, 1)
    assert finished_of(database, 1) == erase.BATCH - 4


def test_a_new_erasure_is_found_behind_very_many_of_another_tenant(
    database: DatabaseFixture, eraser: Eraser
) -> None:
    request_many(database, 1, 50_000, age=60)
    request_many(database, 2, 1, age=0)
    eraser.run_once(0.0)
    assert finished_of(database, 2) == 1


def test_a_turn_ends_in_time_and_the_next_begins_with_who_had_none(
    database: DatabaseFixture, eraser: Eraser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(eraser_module, "TURN_SECONDS", 0.0)
    request_many(database, 1, 5, age=60)
    request_many(database, 2, 1, age=30)
    request_many(database, 3, 1, age=0)
    done = []
    for turn in range(4):
        assert eraser.run_once(float(turn)) == 1
        done.append([finished_of(database, tenant_id) for tenant_id in (1, 2, 3)])
    assert done[0] == [1, 0, 0], "the rest stays due"
    assert done[2] == [1, 1, 1]
    assert done[3] == [2, 1, 1]
