"""A worker process's own parts: claims, heartbeats, endings, on real PostgreSQL."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from sqlalchemy import Engine

from models.errors import StateStoreUnavailable
from models.session import MeasuredPool
from tasks.errors import DependencyFailure, Permanent, Snooze
from tasks.registry import JobType
from tasks.runtime import worker as worker_module
from tasks.runtime.claim import JobRef
from tasks.runtime.context import JobContext
from tasks.runtime.execute import execute, execute_claim
from tasks.runtime.worker import Worker
from tests.integration.house import House


class Fixture:
    """A worker whose jobs do what the test says."""

    def __init__(self, house: House, slots: int = 4) -> None:
        self.house = house
        self.act: Any = lambda ctx, payload: payload
        run = JobType("echo", "short", self._run, 60.0, 3, None, None, None)
        types = {**house.types, "echo": run}
        self.worker = Worker(house.engine, types, name="w1", pools=["short"], slots=slots)
        self.helpers = ThreadPoolExecutor(slots)

    def _run(self, ctx: JobContext, payload: Any) -> Any:
        return self.act(ctx, payload)

    def refs(self, count: int, **fields: Any) -> tuple[JobRef, ...]:
        """Dispatched jobs of the pool."""
        for _ in range(count):
            self.house.submit(pool="short", **fields)
        return tuple(JobRef(d.id, d.lease) for d in self.house.dispatch("short", count))

    def execute(self, refs: tuple[JobRef, ...]) -> None:
        execute(refs, self.worker, self.helpers)

    def flush(self) -> None:
        """Until everything that was posted is written."""
        self.worker._ledger.submit(self.worker._presence(), 10)


@pytest.fixture
def house(engine: Engine) -> House:
    return House(engine)


@pytest.fixture
def fixture(house: House) -> Iterator[Fixture]:
    made = Fixture(house)
    yield made
    made.worker.stop()
    made.helpers.shutdown()


def test_the_jobs_of_a_message_are_run_at_the_same_time(fixture: Fixture) -> None:
    together = threading.Barrier(4, timeout=10)
    fixture.act = lambda ctx, payload: together.wait() and None
    fixture.execute(fixture.refs(4))
    fixture.flush()
    assert {row.status for row in fixture.house.query("SELECT status FROM jobs")} == {"succeeded"}


def test_no_more_jobs_run_than_there_are_slots(fixture: Fixture) -> None:
    running, most, counting = 0, 0, threading.Lock()

    def act(ctx: JobContext, payload: Any) -> None:
        nonlocal running, most
        with counting:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.02)
        with counting:
            running -= 1

    fixture.act = act
    fixture.execute(fixture.refs(20))
    assert most == 4
    fixture.flush()
    assert fixture.house.query("SELECT count(*) FROM jobs WHERE status = 'succeeded'")[0][0] == 20
    assert not fixture.house.miscounted()


@pytest.mark.parametrize(
    ("error", "status", "attempt", "failure"),
    [
        (Permanent("no"), "dead", 1, "PERMANENT"),
        (ValueError("odd"), "scheduled", 1, "APP_ERROR"),
        (DependencyFailure("claude", retry_after=5), "scheduled", 0, "DEPENDENCY"),
        (Snooze(5), "scheduled", 0, None),
        (Snooze("soon"), "scheduled", 1, "APP_ERROR"),  # type: ignore[arg-type]
        (SystemExit(3), "scheduled", 1, "APP_ERROR"),
    ],
)
def test_what_a_job_raises_decides_its_row(
    fixture: Fixture, error: BaseException, status: str, attempt: int, failure: str | None
) -> None:
    def act(ctx: JobContext, payload: Any) -> None:
        raise error

    fixture.act = act
    refs = fixture.refs(1)
    fixture.execute(refs)
    fixture.flush()
    job = fixture.house.job(refs[0].id)
    assert (job.status, job.attempt, job.error_class) == (status, attempt, failure)


def test_a_result_that_is_no_json_is_an_app_error(fixture: Fixture) -> None:
    fixture.act = lambda ctx, payload: object()
    refs = fixture.refs(1)
    fixture.execute(refs)
    fixture.flush()
    assert fixture.house.job(refs[0].id).error_class == "APP_ERROR"


def test_a_result_the_database_refuses_ends_the_job_and_not_its_neighbours(
    fixture: Fixture,
) -> None:
    fixture.act = lambda ctx, payload: payload
    good = fixture.refs(3)
    bad = fixture.house.submit_application(pool="short")
    refs = tuple(JobRef(d.id, d.lease) for d in fixture.house.dispatch("short"))
    types = dict(fixture.worker.types)
    types["score_application"] = JobType(
        "score_application",
        "short",
        lambda ctx, payload: {"score": "many"},
        60,
        3,
        None,
        None,
        None,
    )
    fixture.worker.types = types
    fixture.execute((*good, *refs))
    fixture.flush()
    fixture.flush()
    job = fixture.house.job(bad)
    assert (job.status, job.error_class) == ("dead", "APP_ERROR")
    assert "could not be stored" in job.error_message
    for ref in good:
        assert fixture.house.job(ref.id).status == "succeeded"
    assert fixture.worker._held == {}


def test_a_job_learns_that_its_lease_is_lost_and_its_result_is_refused(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "PRESENCE_SECONDS", 0.05)
    monkeypatch.setattr(worker_module.Held, "due", lambda self, now: True)
    told = threading.Event()

    def act(ctx: JobContext, payload: Any) -> str:
        fixture.house.execute("UPDATE jobs SET lease = lease + 1")
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
    job = fixture.house.job(refs[0].id)
    assert (job.status, job.result) == ("running", None)
    assert fixture.worker._held == {}


def test_a_claim_that_was_lost_before_its_slot_was_free_is_not_run(fixture: Fixture) -> None:
    ran = threading.Event()
    fixture.act = lambda ctx, payload: ran.set()
    (claim,) = fixture.worker.claim(fixture.refs(1))
    fixture.worker._held[claim.ref].lost.set()
    execute_claim(claim, fixture.worker)
    assert not ran.is_set()
    assert fixture.worker._held == {}


def test_heartbeats_go_on_while_endings_are_always_waiting(
    fixture: Fixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker_module, "PRESENCE_SECONDS", 0.05)
    fixture.worker.start()
    fixture.flush()
    seen = fixture.house.query("SELECT heartbeat_at FROM processes")[0][0]
    stop = threading.Event()

    def keep_busy() -> None:
        while not stop.is_set():
            fixture.execute(fixture.refs(20))

    busy = threading.Thread(target=keep_busy)
    busy.start()
    try:
        for _ in range(100):
            now = fixture.house.query("SELECT heartbeat_at FROM processes")[0][0]
            if now > seen:
                break
            threading.Event().wait(0.05)
        assert now > seen
    finally:
        stop.set()
        busy.join()


def test_a_draining_worker_claims_nothing_more_and_releases_what_has_not_begun(
    fixture: Fixture,
) -> None:
    begun, go_on = threading.Event(), threading.Event()

    def act(ctx: JobContext, payload: Any) -> None:
        begun.set()
        assert go_on.wait(10)

    fixture.act = act
    fixture.worker.free_slots = threading.BoundedSemaphore(1)
    refs = fixture.refs(3)
    running = threading.Thread(target=fixture.execute, args=(refs,))
    running.start()
    assert begun.wait(10)
    fixture.worker.drain()
    go_on.set()
    running.join(10)
    fixture.flush()
    states = sorted(row[0] for row in fixture.house.query("SELECT status::text FROM jobs"))
    assert states == ["queued", "queued", "succeeded"]
    spent = fixture.house.query("SELECT sum(attempt), sum(crashes), sum(deferrals) FROM jobs")[0]
    assert tuple(spent) == (1, 0, 0)
    with pytest.raises(StateStoreUnavailable):
        fixture.worker.claim(fixture.refs(1))


def test_a_worker_needs_two_connections_whatever_it_does(house: House) -> None:
    fixture = Fixture(house, slots=50)
    pool = house.engine.pool
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
    assert house.query("SELECT count(*) FROM jobs WHERE status = 'succeeded'")[0][0] == 200
