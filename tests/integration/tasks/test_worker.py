"""A worker process's own parts: claims, heartbeats, endings, on real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import Engine

from models.jobs.claim import Claim, JobRef
from models.jobs.replay import replay_dead
from models.jobs.settle import Settlement
from models.presence import Announced, Presence
from models.store.errors import StateStoreUnavailable
from models.store.session import MeasuredPool
from tasks.context import JobContext
from tasks.errors import DependencyFailure, Permanent, Poison, Snooze, TimeLimit
from tasks.worker import heartbeat as heartbeat_module
from tasks.worker import ledger as ledger_module
from tasks.worker.outcome import RESULT_BYTES, Succeeded
from tasks.worker.pipeline import decide, execute_claim
from tests.support.database_fixture import DatabaseFixture
from tests.support.one_worker import OneWorker, one_worker


@pytest.fixture
def database(engine: Engine) -> DatabaseFixture:
    return DatabaseFixture(engine)


def test_the_jobs_of_a_message_are_run_at_the_same_time(fixture: OneWorker) -> None:
    together = threading.Barrier(4, timeout=10)
    fixture.act = lambda ctx, payload: together.wait() and None
    fixture.execute(fixture.refs(4))
    fixture.flush()
    assert {row.status for row in fixture.database.query("SELECT status FROM jobs")} == {
        "succeeded"
    }


def test_no_more_jobs_run_than_there_are_slots(fixture: OneWorker) -> None:
    running, most, counting, full = 0, 0, threading.Lock(), threading.Event()

    def act(ctx: JobContext, payload: Any) -> None:
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)
            if running == 4:
                full.set()
        full.wait(15)
        threading.Event().wait(0.02)
        with counting:
            running -= 1

    fixture.act = act
    fixture.execute(fixture.refs(20))
    assert most == 4
    fixture.flush()
    assert (
        fixture.database.query("SELECT count(*) FROM jobs WHERE status = 'succeeded'")[0][0] == 20
    )
    assert not fixture.database.miscounted()


def settle_as(fixture: OneWorker, claim: Claim, outcome: Succeeded) -> None:
    decided, ending = decide(claim, outcome, fixture.worker)
    fixture.worker.ledger.settle(claim, decided, ending, 0.1)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise RuntimeError("there are no words for it")


@pytest.mark.parametrize(
    ("error", "status", "attempt", "failure"),
    [
        (Permanent("no"), "dead", 1, "PERMANENT"),
        (ValueError("odd"), "scheduled", 1, "APP_ERROR"),
        (DependencyFailure("claude", retry_after=5), "scheduled", 0, "DEPENDENCY"),
        (Snooze(5), "scheduled", 0, None),
        (Snooze("soon"), "scheduled", 1, "APP_ERROR"),  # type: ignore[arg-type]
        (SystemExit(3), "scheduled", 1, "APP_ERROR"),
        (Unspeakable(), "scheduled", 1, "APP_ERROR"),
        (ValueError("half a \ud83d smiley and a \x00"), "scheduled", 1, "APP_ERROR"),
        (DependencyFailure("\x00\ud800"), "scheduled", 0, "DEPENDENCY"),
        (TimeLimit(), "scheduled", 1, "TIMEOUT"),
        (MemoryError(), "scheduled", 1, "RESOURCE_VIOLATION"),
        (Poison(), "dead", 1, "POISON"),
        (StateStoreUnavailable(), "queued", 0, None),
    ],
)
def test_what_a_job_raises_decides_its_row(
    fixture: OneWorker, error: BaseException, status: str, attempt: int, failure: str | None
) -> None:
    def act(ctx: JobContext, payload: Any) -> None:
        raise error

    fixture.act = act
    refs = fixture.refs(1)
    fixture.execute(refs)
    fixture.flush()
    job = fixture.database.job(refs[0].id)
    assert (job.status, job.attempt, job.error_class) == (status, attempt, failure)


def test_one_violation_is_retried_whatever_failed_before_and_a_replay_counts_anew(
    fixture: OneWorker,
) -> None:
    database, errors = fixture.database, [ValueError("odd"), TimeLimit()]

    def act(ctx: JobContext, payload: Any) -> None:
        raise errors.pop(0) if errors else MemoryError()

    def run() -> tuple[str, int, str]:
        fixture.execute(fixture.dispatched(1))
        fixture.flush()
        job = database.job(job_id)
        database.execute("UPDATE jobs SET status = 'queued' WHERE status = 'scheduled'")
        return job.status, job.attempt, job.error_class

    fixture.act = act
    job_id = database.submit(pool="short")
    assert run() == ("scheduled", 1, "APP_ERROR")
    assert run() == ("scheduled", 2, "TIMEOUT")
    assert run() == ("dead", 3, "RESOURCE_VIOLATION")
    assert replay_dead(database.engine, 1, [job_id]) == [job_id]
    assert run() == ("scheduled", 1, "RESOURCE_VIOLATION")
    assert run() == ("dead", 2, "RESOURCE_VIOLATION")


def test_a_result_that_is_no_json_is_an_app_error(fixture: OneWorker) -> None:
    fixture.act = lambda ctx, payload: object()
    refs = fixture.refs(1)
    fixture.execute(refs)
    fixture.flush()
    assert fixture.database.job(refs[0].id).error_class == "APP_ERROR"


def test_a_result_that_is_too_large_for_a_row_ends_the_job(fixture: OneWorker) -> None:
    fixture.act = lambda ctx, payload: "x" * payload
    fits = fixture.refs(1, payload=str(RESULT_BYTES - 2))  # two quotation marks
    large = fixture.refs(1, payload=str(RESULT_BYTES - 1))
    fixture.execute((*fits, *large))
    fixture.flush()
    assert fixture.database.job(fits[0].id).status == "succeeded"
    job = fixture.database.job(large[0].id)
    assert (job.status, job.error_class, job.attempt) == ("dead", "PERMANENT", 1)
    assert f"{RESULT_BYTES + 1} bytes" in job.error_message


def test_large_results_are_written_in_small_groups(
    fixture: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    sizes: list[int] = []
    write = ledger_module.settle_group

    def settle(
        engine: Engine, statement: str, worker: str, group: Sequence[Settlement]
    ) -> list[bool]:
        sizes.append(sum(len(settlement.ending.result or "") for settlement in group))
        return write(engine, statement, worker, group)

    monkeypatch.setattr(ledger_module, "settle_group", settle)
    claims = fixture.worker.slots.claim(fixture.refs(12))
    for claim in claims:
        settle_as(fixture, claim, Succeeded('"' + "x" * 900_000 + '"'))
    fixture.flush()
    assert sum(sizes) > 12 * 900_000
    assert max(sizes) <= 4 * 1_048_576
    assert fixture.worker.slots.held() == []


def test_heartbeats_do_not_wait_behind_an_ending_that_cannot_be_written(
    fixture: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_module, "PRESENCE_SECONDS", 0.05)
    write, stuck, lively = ledger_module.settle_group, threading.Event(), threading.Event()
    beats = 0

    def settle(
        engine: Engine, statement: str, worker: str, group: Sequence[Settlement]
    ) -> list[bool]:
        if not lively.is_set():
            stuck.set()
            raise StateStoreUnavailable("statement timeout")
        return write(engine, statement, worker, group)

    def announced(engine: Engine, presence: Presence) -> Announced:
        nonlocal beats
        beats += stuck.is_set()
        if beats == 3:
            lively.set()
        return Announced(False, datetime.now(UTC))

    monkeypatch.setattr(ledger_module, "settle_group", settle)
    monkeypatch.setattr(heartbeat_module, "announce", announced)
    refs = fixture.refs(2)
    claims = fixture.worker.slots.claim(refs)
    settle_as(fixture, claims[0], Succeeded("1"))
    assert stuck.wait(10)
    fixture.worker.start()
    assert lively.wait(10), "the process looks dead, and its other leases run out"
    fixture.flush()
    assert fixture.database.job(refs[0].id).status == "succeeded"


def test_a_result_the_database_refuses_ends_the_job_and_not_its_neighbours(
    database: DatabaseFixture,
) -> None:
    wrong = replace(database.types["score_application"], run=lambda ctx, payload: {"score": "many"})
    database.types = {**database.types, "score_application": wrong}
    with one_worker(database) as fixture:
        _let_one_be_refused(fixture)


def _let_one_be_refused(fixture: OneWorker) -> None:
    fixture.act = lambda ctx, payload: payload
    good = fixture.refs(3)
    bad = fixture.database.submit_application(pool="short")
    refs = tuple(JobRef(d.id, d.lease) for d in fixture.database.dispatch("short"))
    fixture.execute((*good, *refs))
    fixture.flush()
    fixture.flush()
    job = fixture.database.job(bad)
    assert (job.status, job.error_class) == ("dead", "APP_ERROR")
    assert "could not be stored" in job.error_message
    for ref in good:
        assert fixture.database.job(ref.id).status == "succeeded"
    assert fixture.worker.slots.held() == []


def test_a_payload_that_no_longer_fits_its_schema_is_dead_at_once(fixture: OneWorker) -> None:
    [ref] = fixture.refs(1, type="count", payload='{"up_to": 3}')
    fixture.execute((ref,))
    fixture.flush()
    job = fixture.database.job(ref.id)
    assert (job.status, job.error_class, job.attempt) == ("dead", "PERMANENT", 1)
    assert job.error_message == (
        "The payload does not match the schema of count:"
        " payload.up_to: Extra inputs are not permitted."
    )


def test_a_job_learns_that_its_lease_is_lost_and_its_result_is_refused(
    fixture: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_module, "PRESENCE_SECONDS", 0.05)
    told = threading.Event()

    def act(ctx: JobContext, payload: Any) -> str:
        fixture.database.execute("UPDATE jobs SET lease = lease + 1")
        while not ctx.is_cancelled():
            threading.Event().wait(0.01)
        told.set()
        return "too late"

    fixture.act = act
    fixture.worker.start()
    refs = fixture.refs(1)
    fixture.execute(refs)
    assert told.is_set()
    fixture.flush()
    job = fixture.database.job(refs[0].id)
    assert (job.status, job.result) == ("running", None)
    assert fixture.worker.slots.held() == []


def test_a_claim_that_was_lost_before_its_slot_was_free_is_not_run(fixture: OneWorker) -> None:
    ran = threading.Event()
    fixture.act = lambda ctx, payload: ran.set()
    (claim,) = fixture.worker.slots.claim(fixture.refs(1))
    fixture.worker.slots.held()[0].lost = True
    execute_claim(claim, fixture.worker)
    assert not ran.is_set()
    assert fixture.worker.slots.held() == []


def test_heartbeats_go_on_while_endings_are_always_waiting(
    fixture: OneWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(heartbeat_module, "PRESENCE_SECONDS", 0.05)
    fixture.worker.start()
    fixture.flush()
    seen = fixture.database.query("SELECT heartbeat_at FROM processes")[0][0]
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            fixture.execute(fixture.refs(20))

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        for _ in range(300):
            now = fixture.database.query("SELECT heartbeat_at FROM processes")[0][0]
            if now > seen:
                break
            threading.Event().wait(0.05)
        assert now > seen
    finally:
        stop.set()
        busy.join()


def test_a_draining_worker_claims_nothing_more_and_releases_what_has_not_begun(
    fixture: OneWorker,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def act(ctx: JobContext, payload: Any) -> None:
        begun.set()
        assert go_on.wait(10)

    fixture.act = act
    refs = fixture.refs(3)
    running = threading.Thread(target=fixture.execute, args=(refs,))
    free = fixture.worker.slots.free
    with free, free, free:  # one of four is left
        running.start()
        assert begun.wait(10)
        fixture.worker.slots.drain()
        go_on.set()
        running.join(10)
    fixture.flush()
    states = sorted(row[0] for row in fixture.database.query("SELECT status::text FROM jobs"))
    assert states == ["queued", "queued", "succeeded"]
    spent = fixture.database.query("SELECT sum(attempt), sum(crashes), sum(deferrals) FROM jobs")[0]
    assert tuple(spent) == (1, 0, 0)
    with pytest.raises(StateStoreUnavailable):
        fixture.worker.slots.claim(fixture.refs(1))


def test_a_worker_needs_two_connections_whatever_it_does(database: DatabaseFixture) -> None:
    fixture = OneWorker(database, slots=50)
    pool = database.engine.pool
    assert isinstance(pool, MeasuredPool)
    pool.read_stats("test")
    most = 0
    done = threading.Event()

    def watch() -> None:
        nonlocal most
        while not done.is_set():
            most = max(most, pool.checkedout())

    refs = fixture.refs(200)
    watcher = threading.Thread(target=watch)
    watcher.start()
    threads = [
        threading.Thread(target=fixture.execute, args=(refs[start : start + 4],))
        for start in range(0, 200, 4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    fixture.worker.stop()
    fixture.helpers.shutdown()
    done.set()
    watcher.join()
    assert 1 <= most <= 2
    assert pool.read_stats("test").waiters == 0
    assert database.query("SELECT count(*) FROM jobs WHERE status = 'succeeded'")[0][0] == 200
