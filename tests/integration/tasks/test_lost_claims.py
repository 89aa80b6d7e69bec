"""What a worker had claimed and not begun when it died is no crash of those jobs."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import Engine

from app.scheduler.maintenance.reaper import Reaper
from models.jobs.admit_alone import admit_alone
from models.jobs.claim import Claim, JobRef
from models.jobs.ids import new_id
from models.jobs.offer import offer
from models.jobs.submission import Submission, SubmissionGroup
from models.presence import Presence, announce
from tasks.watchdog.lost_runs import settle_overdue
from tasks.watchdog.watchdog import Watchdog
from tasks.worker import pipeline
from tasks.worker.pipeline import execute_claim
from tests.support.database_fixture import DatabaseFixture
from tests.support.locks import held_lock
from tests.support.one_worker import OneWorker, one_worker
from tests.support.waiting import wait_for


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    return DatabaseFixture(engine)


@contextmanager
def blocked(database: DatabaseFixture, slots: int, jobs: int) -> Iterator[tuple[OneWorker, Any]]:
    """A worker whose slots are taken by the first jobs of a message; the others wait."""
    go_on, began = threading.Event(), threading.Semaphore(0)

    def act(ctx: Any, payload: Any) -> None:
        began.release()
        go_on.wait(20)

    with one_worker(database, slots=slots) as one:
        one.act = act
        refs = one.refs(jobs)
        message = threading.Thread(target=one.execute, args=(refs,))
        message.start()
        for _ in range(slots):
            assert began.acquire(timeout=10)
        try:
            yield one, refs
        finally:
            go_on.set()
            message.join(10)


def lose_worker(database: DatabaseFixture) -> None:
    database.expire_leases()
    assert Reaper(database.engine, database.leader, database.types).run_once(0.0)


def counts(database: DatabaseFixture) -> list[tuple[str, int, int]]:
    rows = database.query("SELECT status::text, crashes, lost_claims FROM jobs ORDER BY id")
    return [tuple(row) for row in rows]


def save_checkpoint(database: DatabaseFixture, ref: JobRef) -> None:
    database.execute(
        "INSERT INTO checkpoints (job_id, lease, state) VALUES (%s, %s, '1')", ref.id, ref.lease
    )


def test_what_waited_in_a_lost_worker_has_no_crash(database: DatabaseFixture) -> None:
    with blocked(database, slots=2, jobs=6):
        lose_worker(database)
        assert counts(database) == [("queued", 1, 0)] * 2 + [("queued", 0, 1)] * 4
        assert len(database.query("SELECT 1 FROM attempts")) == 2


def test_a_run_that_had_to_wait_is_noted_by_the_next_heartbeat(database: DatabaseFixture) -> None:
    with blocked(database, slots=1, jobs=2) as (one, refs):
        database.execute("UPDATE jobs SET started_at = now() - interval '1 hour'")
        held = one.worker.slots.find(refs[1])
        assert held is not None and held.start_unrecorded
        held.begin()  # as if another slot had become free, five seconds ago
        held.started = time.monotonic() - 5.0
        one.flush()
        assert not held.start_unrecorded
        row = database.job(refs[1].id)
        assert row.waiting_lease is None
        [age] = database.query("SELECT now() - started_at AS age FROM jobs WHERE id = %s", row.id)
        assert 4.9 < age.age.total_seconds() < 600, "timed from its beginning, not from its claim"
        lose_worker(database)
        job = database.job(refs[1].id)
        assert (job.crashes, job.lost_claims) == (1, 0)


def report_alive(database: DatabaseFixture) -> None:
    announce(database.engine, Presence("w1", "worker", ["medium"], slots=4))


def offer_slots(database: DatabaseFixture) -> None:
    """A worker that is alive offers to run four jobs."""
    database.execute("INSERT INTO express_lanes (pool, credit) VALUES ('medium', 1000)")
    report_alive(database)
    assert offer(database.engine, "w1", ["medium"], 4)


def give(database: DatabaseFixture) -> JobRef:
    """A new job that the worker is given by its row."""
    item = Submission(new_id(), 1, "echo", "medium", "{}")
    assert admit_alone(database.engine, SubmissionGroup((item,)), True, True).given
    return JobRef(item.id, 1)


def test_a_job_given_to_a_worker_that_was_not_heard_since_has_no_crash(
    database: DatabaseFixture,
) -> None:
    """A dead worker's offer stands until its silence is noticed."""
    offer_slots(database)
    give(database)
    report_alive(database)
    give(database)
    save_checkpoint(database, give(database))
    database.execute("UPDATE jobs SET reported_lease = 1 WHERE id = %s", give(database).id)
    lose_worker(database)
    assert counts(database) == [("queued", 1, 0), ("queued", 0, 1), *[("queued", 1, 0)] * 2]
    assert len(database.query("SELECT 1 FROM attempts")) == 3


def test_a_job_that_kills_the_worker_it_is_given_to_is_mistaken_once(
    database: DatabaseFixture,
) -> None:
    offer_slots(database)
    give(database)
    lose_worker(database)
    assert counts(database) == [("queued", 0, 1)]
    [dispatch] = database.dispatch()
    assert database.claim(JobRef(dispatch.id, dispatch.lease), worker="w1")
    lose_worker(database)
    assert counts(database) == [("queued", 1, 1)]


def test_a_job_whose_claim_was_lost_begins_on_record(database: DatabaseFixture) -> None:
    with blocked(database, slots=1, jobs=2) as (_, refs):
        lose_worker(database)
    database.execute("UPDATE jobs SET status = 'cancelled' WHERE crashes > 0")
    seen: list[Any] = []
    with one_worker(database, slots=1, name="w2") as one:
        one.act = lambda ctx, payload: seen.append(database.job(ctx.job_id).waiting_lease)
        database.submit(pool="short")
        fresh, again = sorted(one.dispatched(10), key=lambda ref: ref.id == refs[1].id)
        one.execute((fresh, again))
        one.flush()
    assert again.id == refs[1].id
    assert seen == [None, None], "the second waited, and was noted before it began"
    assert database.job(again.id).status == "succeeded"


def test_a_run_that_has_to_begin_on_record_waits_for_a_locked_row(
    database: DatabaseFixture,
) -> None:
    ran: list[str] = []
    with one_worker(database, slots=1) as one:
        one.act = lambda ctx, payload: ran.append(ctx.job_id)
        database.submit(pool="short")
        database.submit(pool="short")
        database.execute("UPDATE jobs SET lost_claims = 1")
        refs = one.dispatched(2)
        [first, second] = one.worker.slots.claim(refs)
        with held_lock(database, "SELECT FROM jobs WHERE id = %s FOR UPDATE", second.ref.id):
            run = threading.Thread(target=execute_claim, args=(second, one.worker))
            run.start()
            wait_for(lambda: one.worker.slots.busy == 1)
            run.join(0.3)
            assert ran == []
        run.join(10)
        assert ran == [second.ref.id]
        # One whose lease is lost meanwhile does not begin at all.
        held = one.worker.slots.find(first.ref)
        assert held is not None
        held.start_unrecorded = True
        database.execute("UPDATE jobs SET lease = lease + 1 WHERE id = %s", first.ref.id)
        execute_claim(first, one.worker)
        one.flush()
        assert ran == [second.ref.id]


def test_a_job_that_lost_a_worker_begins_on_record(database: DatabaseFixture) -> None:
    seen: list[Any] = []
    with one_worker(database, slots=2) as one:
        one.act = lambda ctx, payload: seen.append(database.job(ctx.job_id).waiting_lease)
        [ref] = one.refs(1)
        database.execute("UPDATE jobs SET crashes = 1")
        [claim] = one.worker.slots.claim((ref,))
        assert database.job(ref.id).waiting_lease == ref.lease, "what dies now was not this job"
        execute_claim(claim, one.worker)
        one.flush()
    assert seen == [None]
    assert database.job(ref.id).status == "succeeded"


def test_jobs_that_lost_several_workers_run_one_at_a_time(database: DatabaseFixture) -> None:
    go_on, began, most = threading.Event(), threading.Semaphore(0), [0]
    suspects: set[str] = set()
    running: set[str] = set()

    def act(ctx: Any, payload: Any) -> None:
        running.add(ctx.job_id)
        most[0] = max(most[0], len(running & suspects))
        began.release()
        go_on.wait(20)
        running.discard(ctx.job_id)

    with one_worker(database, slots=6) as one:
        one.act = act
        refs = one.refs(5)
        suspects |= {ref.id for ref in refs[:3]}
        database.execute("UPDATE jobs SET crashes = 2 WHERE id = ANY (%s::uuid[])", list(suspects))
        message = threading.Thread(target=one.execute, args=(refs,))
        message.start()
        for _ in range(3):
            assert began.acquire(timeout=10), "two others and one of them begin"
        assert not began.acquire(timeout=0.5)
        lose_worker(database)
        rows = database.query(
            "SELECT crashes FROM jobs WHERE id = ANY (%s::uuid[])", list(suspects)
        )
        assert sorted(row.crashes for row in rows) == [2, 2, 3], "those that waited lost a claim"
        go_on.set()
        message.join(20)
    assert most == [1]


def test_a_run_that_saved_a_checkpoint_had_begun(database: DatabaseFixture) -> None:
    with blocked(database, slots=1, jobs=2) as (_, refs):
        save_checkpoint(database, refs[1])
        lose_worker(database)
        assert counts(database) == [("queued", 1, 0)] * 2


def claim_again(one: OneWorker) -> Claim:
    """Claim a job that has no slot at once and whose claim was lost before: it has to be on record
    before it begins."""
    refs = one.refs(2)
    one.database.execute("UPDATE jobs SET lost_claims = 1")
    claims = one.worker.slots.claim(refs)
    one.worker.slots.forget(claims[0].ref)
    return claims[1]


def test_time_before_a_run_is_on_record_is_not_its_own(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    with one_worker(database, slots=1) as one:
        one.act = lambda ctx, payload: ran.append(ctx.job_id)
        claim, killed = claim_again(one), []
        watchdog = Watchdog(one.worker, ["short"], 5.0)
        monkeypatch.setattr(watchdog, "_kill_process_after_writing", killed.append)
        with held_lock(database, "SELECT FROM jobs WHERE id = %s FOR UPDATE", claim.ref.id):
            run = threading.Thread(target=execute_claim, args=(claim, one.worker))
            run.start()
            wait_for(lambda: one.worker.slots.busy == 1)
            for hours in (1, 2, 3):
                watchdog.look(time.monotonic() + 3600 * hours, 3600.0)
            assert one.worker.slots.busy == 1 and not ran
            released = time.monotonic()
        run.join(10)
        own = time.monotonic() - released
        one.flush()
    assert (killed, ran) == ([], [claim.ref.id])
    job = database.job(claim.ref.id)
    assert job.status == "succeeded" and job.slot_seconds <= own


def test_heartbeat_that_fails_costs_no_slot_and_no_job(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[str] = []
    with one_worker(database, slots=1) as one:
        one.act = lambda ctx, payload: ran.append(ctx.job_id)
        claim = claim_again(one)
        with monkeypatch.context() as patched:
            patched.setattr(one.worker.heartbeat, "beat", lambda: 1 / 0)
            execute_claim(claim, one.worker)
        one.flush()
        assert (one.worker.slots.busy, one.worker.slots.held(), ran) == (0, [], [])
        assert one.worker.slots.free.acquire(timeout=1)
        one.worker.slots.free.release()
    assert database.job(claim.ref.id).status == "queued"


def test_slot_is_free_again_whatever_ends_its_run(
    database: DatabaseFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    with one_worker(database, slots=1) as one:
        [claim] = one.worker.slots.claim(one.refs(1))
        monkeypatch.setattr(pipeline, "run", lambda *_: 1 / 0)
        assert execute_claim(claim, one.worker) is None
        assert one.worker.slots.busy == 0


def test_the_first_of_every_message_have_the_slots(database: DatabaseFixture) -> None:
    with one_worker(database, slots=3) as one:
        refs = one.refs(6)
        waiting = one.worker.slots._without_slot([refs[:4], refs[4:]])
        assert waiting == {refs[2], refs[3], refs[5]}, "first, first, second"
        one.worker.slots.claim(refs[:2])
        assert one.worker.slots._without_slot([refs[2:4], ()]) == {refs[3]}


def test_a_claim_that_a_worker_of_before_made_counts_as_begun(database: DatabaseFixture) -> None:
    with blocked(database, slots=1, jobs=2):
        lose_worker(database)
    refs = [JobRef(one.id, one.lease) for one in database.dispatch("short")]
    assert len(refs) == 2
    # Its statement does not know the column, which still has the number of the lease before.
    database.execute(
        "UPDATE jobs SET status = 'running', worker = 'old', started_at = now(),"
        " waiting_lease = lease - 1"
    )
    lose_worker(database)
    assert [crashes for _, crashes, _ in counts(database)] == [2, 1]


def test_a_cancelled_job_that_waited_in_a_lost_worker_is_cancelled(
    database: DatabaseFixture,
) -> None:
    with blocked(database, slots=1, jobs=2) as (_, refs):
        database.execute("UPDATE jobs SET cancel_requested_at = now()")
        lose_worker(database)
        job = database.job(refs[1].id)
        assert (job.status, job.crashes) == ("cancelled", 0)
        assert job.finished_at is not None


@pytest.mark.parametrize("known", [True, False], ids=["noted", "not noted"])
def test_only_the_job_that_ran_pays_for_a_message_that_its_parent_ended(
    database: DatabaseFixture, known: bool
) -> None:
    url = database.engine.url.render_as_string(hide_password=False)
    with blocked(database, slots=1, jobs=3) as (one, refs):
        announce(database.engine, Presence("w1", "worker", parent="its parent"))
        database.execute("UPDATE jobs SET started_at = now() - interval '1 hour'")
        if not known:
            database.execute("UPDATE jobs SET waiting_lease = lease")
        assert settle_overdue(url, one.worker.types, "its parent", refs) == 3
        rows = [database.job(ref.id) for ref in refs]
        assert [row.error_class for row in rows] == ["TIMEOUT", None, None]
        assert [row.status for row in rows][1:] == ["queued"] * 2
        assert [row.deferrals for row in rows][1:] == [0, 0]


def test_a_run_that_saved_a_checkpoint_pays_for_its_message(database: DatabaseFixture) -> None:
    url = database.engine.url.render_as_string(hide_password=False)
    with blocked(database, slots=1, jobs=3) as (one, refs):
        announce(database.engine, Presence("w1", "worker", parent="its parent"))
        database.execute("UPDATE jobs SET started_at = now() - interval '1 hour'")
        database.execute("UPDATE jobs SET waiting_lease = lease")
        save_checkpoint(database, refs[1])
        assert settle_overdue(url, one.worker.types, "its parent", refs) == 3
        rows = [database.job(ref.id) for ref in refs]
        assert [row.error_class for row in rows] == [None, "TIMEOUT", None]
