"""What is old goes, in bounded batches, and takes its blobs along; what is named stays."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.scheduler.maintenance import collector as collecting
from app.scheduler.maintenance import retirer as retiring
from app.scheduler.maintenance.collector import Collector
from app.scheduler.maintenance.housekeeping import Housekeeping
from app.scheduler.maintenance.retirer import Kept, Retirer
from app.scheduler.role import TimedRole
from models.blobs import BlobError, BlobMissing, BlobStore, checkpoint_key, open_blobs, payload_key
from models.jobs import retire
from models.jobs.claim import Claim, JobRef
from models.jobs.ids import new_id
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.tallies import add_tallies
from tests.integration.emptied import emptied
from tests.integration.house import House

DAY = 86_400.0
KEPT = Kept(finished=7 * DAY, dead=30 * DAY, events=7 * DAY, keys=DAY)

SUCCEEDED = Ending(JobStatus.SUCCEEDED, tries_spent=1, result='{"score": 50, "rationale": "x"}')
DEAD = Ending(JobStatus.DEAD, tries_spent=1, error_class=FailureClass.PERMANENT)


@pytest.fixture
def house(api_house: House) -> House:
    return emptied(api_house)


@pytest.fixture
def blobs(tmp_path: Path) -> BlobStore:
    return open_blobs(f"file://{tmp_path}")


@pytest.fixture
def retirer(house: House, blobs: BlobStore) -> Retirer:
    return Retirer(house.engine, house.leader, blobs, KEPT)


def id_of_age(days: float) -> str:
    """An id as it was made so long ago."""
    fresh = new_id()
    made = int(fresh.replace("-", "")[:12], 16) - int(days * DAY * 1000)
    return f"{made:012x}"[:8] + "-" + f"{made:012x}"[8:] + fresh[13:]


def end(house: House, claim: Claim, ending: Ending, days: float) -> str:
    """End the run, so long ago."""
    assert house.settle(claim.ref, ending)
    house.execute(
        "UPDATE jobs SET finished_at = now() - make_interval(secs => %s) WHERE id = %s",
        days * DAY,
        claim.ref.id,
    )
    return claim.ref.id


def claim_all(house: House) -> tuple[Claim, ...]:
    """Whatever is in line, running."""
    return house.claim(*[JobRef(sent.id, sent.lease) for sent in house.dispatch()])


def ids(house: House, table: str, column: str = "id") -> set[str]:
    return {row[0] for row in house.query(f"SELECT {column}::text FROM {table}")}


def test_ended_jobs_go_by_age_and_dead_letters_have_an_age_of_their_own(
    house: House, retirer: Retirer
) -> None:
    def job(ending: Ending, days: float) -> str:
        return end(house, house.start(id=id_of_age(days)), ending, days)

    kept = {
        job(SUCCEEDED, 6.9),
        job(DEAD, 29.9),
        house.submit(id=id_of_age(40)),
        house.start(id=id_of_age(40)).ref.id,
        end(house, house.start(id=id_of_age(40)), SUCCEEDED, 1),
    }
    job(SUCCEEDED, 7.1)
    job(DEAD, 30.1)
    before = house.query("SELECT sum(succeeded), sum(dead) FROM job_counts")
    retirer.run_once(0.0)
    assert ids(house, "jobs") == kept
    assert ids(house, "attempts", "job_id") == ids(house, "attempts", "job_id") & kept
    assert house.query("SELECT sum(succeeded), sum(dead) FROM job_counts") == before


def test_a_scored_application_outlives_its_job_and_an_unscored_one_does_not(
    house: House, retirer: Retirer
) -> None:
    def application(ending: Ending) -> str:
        house.submit_application(id=id_of_age(40))
        (claim,) = claim_all(house)
        return end(house, claim, ending, 40)

    scored, _ = application(SUCCEEDED), application(DEAD)
    retirer.run_once(0.0)
    assert ids(house, "jobs") == set()
    assert ids(house, "applications") == {scored}


def test_a_job_takes_its_checkpoint_and_its_blobs_along(
    house: House, retirer: Retirer, blobs: BlobStore
) -> None:
    old = id_of_age(8)
    keys = [payload_key(old), checkpoint_key(old, 1, 3)]
    claim = house.start(id=old, payload="null", payload_blob=keys[0])
    house.execute("INSERT INTO checkpoints (job_id, lease, blob) VALUES (%s, 1, %s)", old, keys[1])
    for key in keys:
        blobs.put(key, b"large")
    end(house, claim, SUCCEEDED, 8)
    retirer.run_once(0.0)
    assert ids(house, "checkpoints", "job_id") == set()
    for key in keys:
        with pytest.raises(BlobMissing):
            blobs.get(key)


def test_a_store_that_is_away_keeps_no_row(house: House) -> None:
    old = id_of_age(8)
    end(house, house.start(id=old, payload_blob=payload_key(old)), SUCCEEDED, 8)
    Retirer(house.engine, house.leader, open_blobs("file:///nowhere/at/all"), KEPT).run_once(0.0)
    assert ids(house, "jobs") == set()


def test_the_walk_is_bounded_goes_on_where_it_was_and_begins_again(
    house: House, retirer: Retirer, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = retire.RETIRE_JOBS.replace(f"LIMIT {retire.BATCH}", "LIMIT 2")
    monkeypatch.setattr(retire, "RETIRE_JOBS", small)
    monkeypatch.setattr(retiring, "BATCH", 2)
    ages = [40, 39, 38, 37, 36]
    jobs = [house.submit(id=id_of_age(days)) for days in ages]
    for claim in claim_all(house):
        if claim.ref.id not in jobs[:2]:
            end(house, claim, SUCCEEDED, 30)
    left = []
    for turn in range(4):
        retirer.run_once(turn)
        left.append(len(ids(house, "jobs")))
    assert left == [5, 3, 2, 2]
    house.execute("UPDATE jobs SET status = 'succeeded', finished_at = now() - interval '8 days'")
    retirer.run_once(4.0)
    assert len(ids(house, "jobs")) == 2, "a rest between two walks"
    retirer.run_once(4.0 + retiring.WALK_SECONDS)
    assert ids(house, "jobs") == set()


def test_a_dead_letter_that_is_replayed_at_that_moment_stays(
    house: House, retirer: Retirer
) -> None:
    job_id = end(house, house.start(id=id_of_age(40)), DEAD, 40)
    with house.engine.connect() as other:
        scoped = other.execution_options(isolation_level="READ COMMITTED")
        with scoped.begin():
            replay = "UPDATE jobs SET status = 'queued', ended_xid = NULL WHERE id = %s"
            scoped.exec_driver_sql(replay, (job_id,))
            waiting = threading.Thread(target=retirer.run_once, args=(0.0,))
            waiting.start()
            await_lock(house)
    waiting.join(10)
    assert house.job(job_id).status == "queued"


def await_lock(house: House) -> None:
    """Until somebody waits for a row."""
    deadline = time.monotonic() + 10
    while not house.query(
        "SELECT FROM pg_stat_activity"
        " WHERE wait_event_type = 'Lock' AND datname = current_database()"
    ):
        assert time.monotonic() < deadline


def test_refusals_go_by_age_and_their_sums_stay(
    house: House, retirer: Retirer, monkeypatch: pytest.MonkeyPatch
) -> None:
    few = retiring.RETIRE_REFUSALS.replace(f"LIMIT {retiring.BATCH}", "LIMIT 2")
    monkeypatch.setattr(retiring, "RETIRE_REFUSALS", few)
    monkeypatch.setattr(retiring, "BATCH", 2)
    house.execute("INSERT INTO refusals VALUES (0, '1970-01-01', 'X', 9)")
    house.execute(
        "INSERT INTO refusals SELECT tenant_id, current_date - days, 'X', 1"
        " FROM generate_series(1, 3) AS tenant_id, unnest('{1, 399, 401, 500}'::int[]) AS days"
    )
    for turn in range(8):
        retirer.run_once(float(turn))
    rows = house.query("SELECT tenant_id, current_date - day FROM refusals ORDER BY 1, 2")
    assert [tuple(row) for row in rows if row[0]] == [
        (tenant_id, days) for tenant_id in (1, 2, 3) for days in (1, 399)
    ]
    assert len(rows) == 7


def test_events_keys_and_tallies_go_by_age(house: House, retirer: Retirer) -> None:
    for days in (8, 6):
        house.execute(
            "INSERT INTO events (tenant_id, kind, at)"
            " VALUES (0, 'x', now() - make_interval(days => %s))",
            days,
        )
    for key, hours in (("old", 25), ("fresh", 23)):
        house.execute(
            "INSERT INTO idempotency_keys (tenant_id, key, digest, job_ids, created_at)"
            " VALUES (1, %s, '', '{}', now() - make_interval(hours => %s))",
            key,
            hours,
        )
    for hours in (1, 3, 24):
        add_tallies(house.engine, [(("type", "echo"), (1, 0)), (("hour", "1"), (1, 0))])
        house.execute(
            "UPDATE tallies SET bucket = bucket - make_interval(hours => %s)"
            " WHERE bucket > now() - interval '1 hour'",
            hours,
        )
    house.execute("INSERT INTO usage VALUES (1, 'medium', '2001-01-01', 0)")
    retirer.run_once(0.0)
    assert len(ids(house, "events")) == 1
    assert ids(house, "idempotency_keys", "key") == {"fresh"}
    assert sorted(row[0] for row in house.query("SELECT kind FROM tallies")) == [
        *["hour"] * 3,
        "type",
    ]
    assert len(ids(house, "usage", "tenant_id")) == 1, "bills stay for ever"


def test_a_retirer_that_was_overtaken_removes_nothing(house: House, retirer: Retirer) -> None:
    end(house, house.start(id=id_of_age(8)), SUCCEEDED, 8)
    house.execute("INSERT INTO events (tenant_id, kind, at) VALUES (0, 'x', '2001-01-01')")
    house.execute("UPDATE leaders SET epoch = epoch + 1")
    assert retirer.run_once(0.0) == 0
    assert len(ids(house, "jobs")) == len(ids(house, "events")) == 1


def aged(folder: Path, key: str, hours: float) -> None:
    """As if the blob had been written so long ago."""
    file = folder / key
    then = file.stat().st_mtime - hours * 3600
    os.utime(file, (then, then))


def test_blobs_that_no_row_names_are_collected_when_they_are_old(
    house: House, blobs: BlobStore, tmp_path: Path
) -> None:
    named, gone, ended = house.start(), new_id(), house.start()
    running = house.start()
    house.execute(
        "UPDATE jobs SET payload_blob = %s WHERE id = %s", payload_key(named.ref.id), named.ref.id
    )
    house.execute(
        "INSERT INTO checkpoints (job_id, lease, blob) VALUES (%s, 1, %s)",
        ended.ref.id,
        checkpoint_key(ended.ref.id, 1, 2),
    )
    for claim in (named, ended):
        assert house.settle(claim.ref, SUCCEEDED)
    kept = {
        payload_key(named.ref.id),
        checkpoint_key(ended.ref.id, 1, 2),
        checkpoint_key(running.ref.id, 1, 1),
        "somebody/elses",
    }
    orphans = {
        payload_key(gone),
        checkpoint_key(gone, 1, 1),
        payload_key(ended.ref.id),
        checkpoint_key(ended.ref.id, 1, 1),
    }
    for key in kept | orphans:
        blobs.put(key, b"large")
        aged(tmp_path, key, 1.1)
    young = payload_key(new_id())
    blobs.put(young, b"large")
    role = Collector(house.engine, house.leader, blobs)
    assert role.run_once(0.0) == len(kept | orphans)
    assert set(blobs.list(0.0)) == kept | {young}
    assert role.run_once(1.0) == 0, "a rest between two passes"


def test_collecting_is_bounded_and_goes_on_where_it_was(
    house: House, blobs: BlobStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(collecting, "BATCH", 4)
    for _ in range(10):
        key = payload_key(new_id())
        blobs.put(key, b"large")
    role = Collector(house.engine, house.leader, blobs, old_seconds=0.0)
    assert [role.run_once(turn) for turn in range(4)] == [4, 4, 2, 0]
    assert not list(blobs.list(0.0))


class AwayBlobs:
    """A store that answers nothing."""

    def __init__(self) -> None:
        self.listed = 0

    def list(self, older_than_seconds: float) -> Iterator[str]:
        self.listed += 1
        raise BlobError
        yield

    def put(self, key: str, data: bytes) -> None:
        raise BlobError

    def get(self, key: str) -> bytes:
        raise BlobError

    def delete(self, key: str) -> None:
        raise BlobError


def test_a_store_that_is_away_is_complained_of_once(
    house: House, caplog: pytest.LogCaptureFixture
) -> None:
    away = AwayBlobs()
    role = Collector(house.engine, house.leader, away)
    for turn in range(3):
        assert role.run_once(turn * collecting.PASS_SECONDS) == 0
    assert away.listed == 3
    assert len(caplog.records) == 1


class Trouble:
    """A role that fails."""

    def run_once(self, now: float) -> int:
        raise ValueError("no")


class Calls:
    """A role that says when it was called."""

    def __init__(self) -> None:
        self.called = threading.Event()

    def run_once(self, now: float) -> int:
        self.called.set()
        return 0


def test_a_housekeeper_that_fails_does_not_keep_the_others_from_their_work(house: House) -> None:
    calls = Calls()
    housekeeping = Housekeeping(house.leader, [TimedRole(Trouble(), 0.0), TimedRole(calls, 0.0)])
    housekeeping.start()
    assert calls.called.wait(5)
    housekeeping.stop(5)


def test_a_standby_does_no_housekeeping(house: House) -> None:
    calls = Calls()
    house.leader.epoch = None
    Housekeeping(house.leader, [TimedRole(calls, 0.0)]).run_once(0.0)
    assert not calls.called.is_set()
