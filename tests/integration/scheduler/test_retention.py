"""What is old goes, in bounded batches, and takes its blobs along; what is named stays."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from sqlalchemy.exc import DBAPIError

from app.scheduler.maintenance import blob_deletes
from app.scheduler.maintenance import collector as collecting
from app.scheduler.maintenance import retirer as retiring
from app.scheduler.maintenance.collector import Collector
from app.scheduler.maintenance.retirer import Kept, Retirer
from app.scheduler.role import Housekeeping, TimedRole, run_due
from models.blobs import (
    BlobEntry,
    BlobError,
    BlobMissing,
    BlobStore,
    checkpoint_key,
    open_blobs,
    payload_key,
)
from models.blobs.directory import DirectoryBlobs
from models.jobs import retire
from models.jobs.claim import Claim, JobRef
from models.jobs.ids import new_id
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.store.errors import StatementTooSlow, StateStoreUnavailable
from models.tallies import TallyKind, add_tallies
from tests.support.blob_keys import keys_in
from tests.support.database_fixture import DatabaseFixture
from tests.support.emptied import emptied

DAY = 86_400.0
KEPT = Kept(finished=7 * DAY, dead=30 * DAY, events=7 * DAY, keys=DAY)

SUCCEEDED = Ending(JobStatus.SUCCEEDED, tries_spent=1, result='{"score": 50, "rationale": "x"}')
DEAD = Ending(JobStatus.DEAD, tries_spent=1, error_class=FailureClass.PERMANENT)


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return open_blobs(f"file://{tmp_path}")


@pytest.fixture
def retirer(database: DatabaseFixture, blobs: BlobStore) -> Retirer:
    return Retirer(database.engine, database.leader, blobs, KEPT)


def id_of_age(days: float) -> str:
    """An id as it was made so long ago."""
    fresh = new_id()
    made = int(fresh.replace("-", "")[:12], 16) - int(days * DAY * 1000)
    return f"{made:012x}"[:8] + "-" + f"{made:012x}"[8:] + fresh[13:]


def end(database: DatabaseFixture, claim: Claim, ending: Ending, days: float) -> str:
    """End the run, so long ago."""
    assert database.settle(claim.ref, ending)
    database.execute(
        "UPDATE jobs SET finished_at = now() - make_interval(secs => %s) WHERE id = %s",
        days * DAY,
        claim.ref.id,
    )
    return claim.ref.id


def claim_all(database: DatabaseFixture) -> tuple[Claim, ...]:
    """Whatever is in queue, running."""
    return database.claim(*[JobRef(sent.id, sent.lease) for sent in database.dispatch()])


def ids(database: DatabaseFixture, table: str, column: str = "id") -> set[str]:
    return {row[0] for row in database.query(f"SELECT {column}::text FROM {table}")}


def test_ended_jobs_go_by_age_and_dead_letters_have_an_age_of_their_own(
    database: DatabaseFixture, retirer: Retirer
) -> None:
    def job(ending: Ending, days: float) -> str:
        return end(database, database.start(id=id_of_age(days)), ending, days)

    kept = {
        job(SUCCEEDED, 6.9),
        job(DEAD, 29.9),
        database.submit(id=id_of_age(40)),
        database.start(id=id_of_age(40)).ref.id,
        end(database, database.start(id=id_of_age(40)), SUCCEEDED, 1),
    }
    job(SUCCEEDED, 7.1)
    job(DEAD, 30.1)
    before = database.query("SELECT sum(succeeded), sum(dead) FROM job_counts")
    retirer.run_once(0.0)
    assert ids(database, "jobs") == kept
    assert ids(database, "attempts", "job_id") == ids(database, "attempts", "job_id") & kept
    assert database.query("SELECT sum(succeeded), sum(dead) FROM job_counts") == before


def test_a_scored_application_outlives_its_job_and_an_unscored_one_does_not(
    database: DatabaseFixture, retirer: Retirer
) -> None:
    def application(ending: Ending) -> str:
        database.submit_application(id=id_of_age(40))
        (claim,) = claim_all(database)
        return end(database, claim, ending, 40)

    scored, _ = application(SUCCEEDED), application(DEAD)
    retirer.run_once(0.0)
    assert ids(database, "jobs") == set()
    assert ids(database, "applications") == {scored}


def test_scored_applications_go_by_an_age_of_their_own_and_never_before_their_jobs(
    database: DatabaseFixture, blobs: BlobStore
) -> None:
    def scored(days: float, *, retired: bool = True) -> str:
        database.submit_application(id=id_of_age(400))
        (claim,) = claim_all(database)
        job_id = end(database, claim, SUCCEEDED, 5)
        database.execute(
            "UPDATE applications SET scored_at = now() - make_interval(days => %s) WHERE id = %s",
            days,
            job_id,
        )
        if retired:
            database.execute("DELETE FROM jobs WHERE id = %s", job_id)
        return job_id

    kept = {scored(89), scored(91, retired=False)}
    gone = {scored(91), scored(300)}
    waiting = database.submit_application(id=id_of_age(400))

    def retire(seconds: float) -> None:
        limits = replace(KEPT, scored=seconds)
        Retirer(database.engine, database.leader, blobs, limits).run_once(0.0)

    retire(0.0)
    assert ids(database, "applications") == kept | gone | {waiting}, "for ever, unless it is set"
    retire(90 * DAY)
    assert ids(database, "applications") == kept | {waiting}


def test_the_walk_over_scored_applications_has_bounded_steps_and_goes_round(
    database: DatabaseFixture, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(retiring, "BATCH", 2)
    small = retire.RETIRE_SCORED.replace(f"LIMIT {retire.BATCH}", "LIMIT 2")
    monkeypatch.setattr(retiring, "RETIRE_SCORED", small)
    for number in range(5):
        database.execute(
            "INSERT INTO applications (id, tenant_id, candidate, role, score, scored_at)"
            " VALUES (%s, 1, 'Ada', 'general', 50, now() - make_interval(days => %s))",
            id_of_age(40 - number),
            40 - number,
        )
    retirer = Retirer(database.engine, database.leader, blobs, replace(KEPT, scored=30 * DAY))
    for turn, left in ((0.0, 3), (0.1, 1), (0.2, 0)):
        retirer.run_once(turn)
        assert len(ids(database, "applications")) == left


def test_a_job_takes_its_checkpoint_and_its_blobs_along(
    database: DatabaseFixture, retirer: Retirer, blobs: BlobStore
) -> None:
    old = id_of_age(8)
    keys = [payload_key(old), checkpoint_key(old, 1, 3)]
    claim = database.start(id=old, payload="null", payload_blob=keys[0])
    database.execute(
        "INSERT INTO checkpoints (job_id, lease, blob) VALUES (%s, 1, %s)", old, keys[1]
    )
    for key in keys:
        blobs.put(key, b"large")
    end(database, claim, SUCCEEDED, 8)
    retirer.run_once(0.0)
    assert ids(database, "checkpoints", "job_id") == set()
    for key in keys:
        with pytest.raises(BlobMissing):
            blobs.get(key)


def test_a_store_that_is_away_keeps_no_row(database: DatabaseFixture) -> None:
    old = id_of_age(8)
    end(database, database.start(id=old, payload_blob=payload_key(old)), SUCCEEDED, 8)
    Retirer(database.engine, database.leader, open_blobs("file:///nowhere/at/all"), KEPT).run_once(
        0.0
    )
    assert ids(database, "jobs") == set()


def test_the_walk_is_bounded_goes_on_where_it_was_and_begins_again(
    database: DatabaseFixture, retirer: Retirer, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = retire.RETIRE_JOBS.replace(f"LIMIT {retire.BATCH}", "LIMIT 2")
    monkeypatch.setattr(retiring, "RETIRE_JOBS", small)
    monkeypatch.setattr(retiring, "BATCH", 2)
    ages = [40, 39, 38, 37, 36]
    jobs = [database.submit(id=id_of_age(days)) for days in ages]
    for claim in claim_all(database):
        if claim.ref.id not in jobs[:2]:
            end(database, claim, SUCCEEDED, 30)
    left = []
    for turn in range(4):
        retirer.run_once(turn)
        left.append(len(ids(database, "jobs")))
    assert left == [5, 3, 2, 2]
    database.execute(
        "UPDATE jobs SET status = 'succeeded', finished_at = now() - interval '8 days'"
    )
    retirer.run_once(4.0)
    assert len(ids(database, "jobs")) == 2, "a rest between two walks"
    retirer.run_once(4.0 + retiring.WALK_SECONDS)
    assert ids(database, "jobs") == set()


def test_a_dead_letter_that_is_replayed_at_that_moment_stays(
    database: DatabaseFixture, retirer: Retirer
) -> None:
    job_id = end(database, database.start(id=id_of_age(40)), DEAD, 40)
    with database.engine.connect() as other:
        scoped = other.execution_options(isolation_level="READ COMMITTED")
        with scoped.begin():
            replay = "UPDATE jobs SET status = 'queued', ended_xid = NULL WHERE id = %s"
            scoped.exec_driver_sql(replay, (job_id,))
            waiting = threading.Thread(target=retirer.run_once, args=(0.0,))
            waiting.start()
            await_lock(database)
    waiting.join(10)
    assert database.job(job_id).status == "queued"


def await_lock(database: DatabaseFixture) -> None:
    """Until somebody waits for a row."""
    deadline = time.monotonic() + 10
    while not database.query(
        "SELECT FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ):
        assert time.monotonic() < deadline


def test_refusals_go_by_age_and_their_sums_stay(
    database: DatabaseFixture, retirer: Retirer, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = retiring.RETIRE_REFUSALS.replace(f"LIMIT {retiring.BATCH}", "LIMIT 2")
    monkeypatch.setattr(retiring, "RETIRE_REFUSALS", few)
    monkeypatch.setattr(retiring, "BATCH", 2)
    database.execute("INSERT INTO refusals VALUES (0, '1970-01-01', 'X', 9)")
    database.execute(
        "INSERT INTO refusals SELECT tenant_id, current_date - days, 'X', 1"
        " FROM generate_series(1, 3) AS tenant_id, unnest('{1, 399, 401, 500}'::int[]) AS days"
    )
    for turn in range(8):
        retirer.run_once(float(turn))
    rows = database.query("SELECT tenant_id, current_date - day FROM refusals ORDER BY 1, 2")
    assert [tuple(row) for row in rows if row[0]] == [
        (tenant_id, days) for tenant_id in (1, 2, 3) for days in (1, 399)
    ]
    assert len(rows) == 7


def test_events_keys_and_tallies_go_by_age(database: DatabaseFixture, retirer: Retirer) -> None:
    for days in (8, 6):
        database.execute(
            "INSERT INTO events (tenant_id, kind, at)"
            " VALUES (0, 'x', now() - make_interval(days => %s))",
            days,
        )
    for key, hours in (("old", 25), ("fresh", 23)):
        database.execute(
            "INSERT INTO idempotency_keys (tenant_id, key, digest, job_ids, created_at)"
            " VALUES (1, %s, '', '{}', now() - make_interval(hours => %s))",
            key,
            hours,
        )
    for digest, state, days in (("old", "finished", 99), ("new", "cancelled", 0), ("on", "", None)):
        database.execute(
            "INSERT INTO replays (id, tenant_id, digest, before, position, state, finished_at)"
            " VALUES (gen_random_uuid(), 1, %s, now(), gen_random_uuid(), %s,"
            " now() - make_interval(days => %s))",
            *(digest, state or "running", days),
        )
    for hours in (1, 3, 24):
        counts = [((TallyKind.TYPE, "echo"), (1, 0)), ((TallyKind.SUBMISSION, "1"), (1, 0))]
        add_tallies(database.engine, counts)
        database.execute(
            "UPDATE tallies SET bucket = bucket - make_interval(hours => %s)"
            " WHERE bucket > now() - interval '1 hour'",
            hours,
        )
    database.execute("INSERT INTO usage VALUES (1, 'medium', '2001-01-01', 0)")
    retirer.run_once(0.0)
    assert len(ids(database, "events")) == 1
    assert ids(database, "idempotency_keys", "key") == {"fresh"}
    assert ids(database, "replays", "digest") == {"new", "on"}
    assert sorted(row[0] for row in database.query("SELECT kind FROM tallies")) == [
        *["submission"] * 3,
        "type",
    ]
    assert len(ids(database, "usage", "tenant_id")) == 1, "bills stay for ever"


def test_a_retirer_that_was_overtaken_removes_nothing(
    database: DatabaseFixture, retirer: Retirer
) -> None:
    end(database, database.start(id=id_of_age(8)), SUCCEEDED, 8)
    database.execute("INSERT INTO events (tenant_id, kind, at) VALUES (0, 'x', '2001-01-01')")
    database.execute("UPDATE leaders SET epoch = epoch + 1")
    assert retirer.run_once(0.0) == 0
    assert len(ids(database, "jobs")) == len(ids(database, "events")) == 1


def aged(folder: Path, key: str, hours: float) -> None:
    """As if the blob had been written so long ago."""
    file = folder / key
    then = file.stat().st_mtime - hours * 3600
    os.utime(file, (then, then))


def test_blobs_that_no_row_names_are_collected_when_they_are_old(
    database: DatabaseFixture, blobs: BlobStore, tmp_path: Path
) -> None:
    named, gone, ended = database.start(), new_id(), database.start()
    running, latest = database.start(), checkpoint_key(ended.ref.id, 1, 2)
    database.execute(
        "UPDATE jobs SET payload_blob = %s WHERE id = %s", payload_key(named.ref.id), named.ref.id
    )
    database.execute(
        "INSERT INTO checkpoints (job_id, lease, blob) VALUES (%s, 1, %s)",
        ended.ref.id,
        latest,
    )
    for claim in (named, ended):
        assert database.settle(claim.ref, SUCCEEDED)
    kept = {
        payload_key(named.ref.id),
        latest,
        checkpoint_key(running.ref.id, 1, 1),
        "somebody/elses",
    }
    orphans = {
        payload_key(gone),
        checkpoint_key(gone, 1, 1),
        payload_key(ended.ref.id),
        checkpoint_key(ended.ref.id, 1, 1),
        latest.rpartition(".")[0],  # as the previous version would have named it
    }
    for key in kept | orphans:
        blobs.put(key, b"large")
        aged(tmp_path, key, 1.1)
    young = payload_key(new_id())
    blobs.put(young, b"large")
    role = Collector(database.engine, database.leader, blobs)
    assert role.run_once(0.0) == len(kept | orphans | {young})
    assert set(keys_in(blobs, 0.0)) == kept | {young}
    assert role.run_once(1.0) == 0, "a rest between two passes"


def test_collecting_is_bounded_and_goes_on_where_it_was(
    database: DatabaseFixture, blobs: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "BATCH", 4)
    for _ in range(10):
        key = payload_key(new_id())
        blobs.put(key, b"large")
    role = Collector(database.engine, database.leader, blobs, old_seconds=0.0)
    assert [role.run_once(turn) for turn in range(4)] == [4, 4, 2, 0]
    assert not list(keys_in(blobs, 0.0))


@pytest.mark.parametrize("slow", [False, True])
def test_blobs_that_cannot_be_deleted_end_no_pass(
    database: DatabaseFixture, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    owned = payload_key(database.submit())
    keys = sorted(payload_key(new_id()) for _ in range(8))
    for key in (owned, *keys):
        blobs.put(key, b"large")
    delete, asked = DirectoryBlobs.delete, []

    def refuse(store: DirectoryBlobs, key: str) -> None:
        asked.append(key)
        if slow or key in keys[:4]:
            raise BlobError("denied")
        delete(store, key)

    monkeypatch.setattr(DirectoryBlobs, "delete", refuse)
    monkeypatch.setattr(collecting, "BATCH", 3)
    monkeypatch.setattr(blob_deletes, "SLOW_SECONDS", -1.0 if slow else 30.0)
    role = Collector(database.engine, database.leader, blobs, old_seconds=0.0)
    while role.run_once(0.0):
        pass
    assert {one.key for one in blobs.entries()} == {owned, *(keys if slow else keys[:4])}
    assert len(asked) == (1 if slow else len(keys)), "a store that does not answer gets a rest"
    assert counted(database) == {0: 5, 1: 5}


def counted(database: DatabaseFixture) -> dict[int, int]:
    rows = database.query("SELECT tenant_id, bytes FROM blob_counts")
    return {row.tenant_id: row.bytes for row in rows}


def test_a_pass_counts_what_tenants_have(
    database: DatabaseFixture, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "BATCH", 2)
    own, more, others = (database.submit(tenant_id=tenant) for tenant in (1, 1, 2))
    state = checkpoint_key(more, 1, 1)
    for key, size in (
        (payload_key(own), 100),
        (payload_key(more), 20),
        (state, 3),
        (payload_key(others), 7),
        (payload_key(new_id()), 5000),  # of a job that is not there
        ("somebody/elses", 5000),
    ):
        blobs.put(key, b"x" * size)
    role = Collector(database.engine, database.leader, blobs)
    turns = [role.run_once(turn) for turn in range(3)]
    assert (turns, counted(database)) == ([2, 2, 2], {}), "not before its end"
    assert role.run_once(3.0) == 0
    assert counted(database) == {0: 130, 1: 123, 2: 7}
    for key in (payload_key(own), payload_key(more), state):
        blobs.delete(key)
    for turn in range(3):
        role.run_once(4.0 + collecting.PASS_SECONDS + turn)
    assert counted(database) == {0: 7, 2: 7}


@pytest.mark.parametrize("trouble", ["statement", "store", "another leader"])
def test_a_pass_that_was_interrupted_counts_nothing(
    database: DatabaseFixture, blobs: BlobStore, monkeypatch: pytest.MonkeyPatch, trouble: str
) -> None:
    monkeypatch.setattr(collecting, "BATCH", 1)
    job_id = database.submit()
    for key in (payload_key(job_id), checkpoint_key(job_id, 1, 1)):
        blobs.put(key, b"large")
    role = Collector(database.engine, database.leader, blobs)
    assert role.run_once(0.0) == 1
    if trouble == "statement":
        with monkeypatch.context() as broken:
            broken.setattr(collecting, "COUNT_BYTES", "SELECT 1/0")
            with pytest.raises(DBAPIError):
                role.run_once(1.0)
    elif trouble == "store":
        assert role._pass is not None
        monkeypatch.setattr(role._pass, "listing", AwayBlobs().entries())
    else:
        assert role._pass is not None and database.leader.epoch is not None
        monkeypatch.setattr(role._pass, "epoch", database.leader.epoch - 1)
    for turn in range(3):
        role.run_once(2.0 + turn)
    assert role._pass is None and counted(database) == {}
    for turn in range(3):
        role.run_once(5.0 + collecting.PASS_SECONDS + turn)
    assert counted(database) == {0: 10, 1: 10}, "the next one does"


class AwayBlobs:
    """A store that answers nothing."""

    def __init__(self) -> None:
        self.listed = 0

    def entries(self, folder: str = "") -> Iterator[BlobEntry]:
        self.listed += 1
        raise BlobError
        yield

    def list(self, older_than_seconds: float) -> Iterator[str]:
        raise BlobError
        yield

    def put(self, key: str, data: bytes) -> None:
        raise BlobError

    def get(self, key: str) -> bytes:
        raise BlobError

    def delete(self, key: str) -> None:
        raise BlobError


def test_a_store_that_is_away_is_complained_of_once(
    database: DatabaseFixture, caplog: pytest.LogCaptureFixture
) -> None:
    away = AwayBlobs()
    role = Collector(database.engine, database.leader, away)
    for turn in range(3):
        assert role.run_once(turn * collecting.PASS_SECONDS) == 0
    assert away.listed == 3
    assert len(caplog.records) == 1


class Trouble:
    """A role that fails."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def run_once(self, now: float) -> int:
        raise self.error


class Calls:
    """A role that says when it was called."""

    def __init__(self) -> None:
        self.called = threading.Event()

    def run_once(self, now: float) -> int:
        self.called.set()
        return 0


@pytest.mark.parametrize(
    "error",
    [ValueError("no"), StateStoreUnavailable("deadlock"), StatementTooSlow("slow")],
)
def test_a_housekeeper_that_fails_does_not_keep_the_others_from_their_work(
    database: DatabaseFixture, error: Exception
) -> None:
    calls = Calls()
    roles = [TimedRole(Trouble(error), 0.0), TimedRole(calls, 0.0)]
    housekeeping = Housekeeping(database.leader, roles)
    housekeeping.start()
    assert calls.called.wait(5)
    housekeeping.stop(5)


def test_a_role_that_is_never_quick_enough_pauses_longer_and_longer(
    database: DatabaseFixture,
) -> None:
    slow = TimedRole(Trouble(StatementTooSlow("slow")), 0.0, backs_off=True)
    pauses = []
    for _ in range(10):
        run_due([slow], database.leader, slow.due, 10.0)
        pauses.append(round(slow.due - time.monotonic()))
    assert pauses[:4] == [10, 20, 40, 80]
    assert pauses[-1] == pauses[-2] == 640
    slow.role = Calls()
    run_due([slow], database.leader, slow.due, 10.0)
    assert slow.slow == 0, "and begins anew"


def test_a_standby_does_no_housekeeping(database: DatabaseFixture) -> None:
    calls = Calls()
    database.leader.epoch = None
    assert run_due([TimedRole(calls, 0.0)], database.leader, 0.0) == 0
    assert not calls.called.is_set()


def test_sessions_are_deleted_when_they_have_ended(
    database: DatabaseFixture, retirer: Retirer
) -> None:
    database.execute("DELETE FROM sessions")
    for name, seconds in (("ended", -1), ("idle", 60)):
        database.execute(
            "INSERT INTO sessions (digest, key_id, expires_at, ends_at)"
            " VALUES (%s, 'key', now() + interval '1 hour', now() + make_interval(secs => %s))",
            name.encode(),
            seconds,
        )
    retirer.run_once(0.0)
    assert [bytes(row.digest) for row in database.query("SELECT digest FROM sessions")] == [b"idle"]
    database.execute("DELETE FROM sessions")
