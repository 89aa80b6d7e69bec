"""Given jobs that begin before Celery knows of them: their tasks wait, and tell how they ended."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from types import SimpleNamespace
from typing import Any

import pytest
from greenlet import GreenletExit

from app.celery import celery
from models.jobs.claim import JobRef, claim_group
from models.jobs.offer import GivenJob
from models.jobs.settle import Ending
from models.jobs.states import JobStatus
from models.store.errors import StateStoreUnavailable
from tasks.errors import Permanent
from tasks.local_message import begin
from tasks.worker import given_runs, pipeline, tracing
from tasks.worker.given_runs import GivenRun
from tests.support.database_fixture import DatabaseFixture
from tests.support.one_worker import OneWorker, one_worker
from tests.support.waiting import wait_for


class GivenJobs:
    """A worker with a stand-in for Celery: it has a pool and takes messages, and starts no task."""

    def __init__(self, one: OneWorker) -> None:
        self.one = one
        self.runs: list[str] = []
        self.go_on = threading.Event()
        self.messages: list[str] = []
        self.killed: list[GivenRun] = []
        self.consumer = SimpleNamespace(strategies={"echo": self._take_message})
        self.app = celery
        self.pool = SimpleNamespace(apply_async=self._apply)
        one.act = self._run

    def _run(self, ctx: Any, payload: Any) -> Any:
        self.runs.append(ctx.job_id)
        self.go_on.wait(20)
        if payload == "fail":
            raise Permanent("no")
        return payload

    def _apply(self, target: Any, args: Any, callback: Any) -> Any:
        self.one.helpers.submit(target, *args)
        return SimpleNamespace(kill=lambda block: self.killed.append(args[0]))

    def _take_message(self, message: Any, *_: Any) -> None:
        self.messages.append(message.headers["id"])

    def give(self, payload: str = "hello") -> JobRef:
        """A job that this worker was given, begun as its listener does."""
        [ref] = self.one.refs(1, payload=json.dumps(payload))
        [(claim,)] = claim_group(self.one.database.engine, "w1", [(ref,)])
        assert self.one.worker.slots.grant(claim)
        begin(self, self.one.worker, GivenJob(ref, claim.type, claim))
        return ref

    def task(self, ref: JobRef) -> Future[dict[str, Ending]]:
        """Celery begins the task of the message."""
        return self.one.helpers.submit(pipeline.execute, (ref,), self.one.worker, self.one.helpers)


@pytest.fixture
def given(database: DatabaseFixture) -> Iterator[GivenJobs]:
    with one_worker(database) as one:
        made = GivenJobs(one)
        yield made
        made.go_on.set()


def test_a_given_job_begins_before_its_task_which_waits_for_its_end(
    given: GivenJobs,
) -> None:
    ref = given.give()
    wait_for(lambda: given.runs == [ref.id])
    assert given.messages == [ref.id], "Celery is told of it"
    run, task = given.one.worker.slots.given.find(ref), given.task(ref)
    with pytest.raises(TimeoutError):
        task.result(0.2)
    given.go_on.set()
    assert task.result(20)[ref.id].status is JobStatus.SUCCEEDED
    given.one.flush()
    assert given.one.database.job(ref.id).result == "hello"
    assert given.runs == [ref.id], "it runs once"
    assert run is not None and 0.2 <= run.seconds < 20


@pytest.mark.parametrize(
    ("payload", "status"), [("hello", JobStatus.SUCCEEDED), ("fail", JobStatus.DEAD)]
)
def test_a_task_that_comes_after_the_end_tells_how_it_ended(
    given: GivenJobs, payload: str, status: JobStatus
) -> None:
    given.go_on.set()
    ref = given.give(payload)
    wait_for(lambda: given.one.database.job(ref.id).status == status)
    assert given.task(ref).result(20)[ref.id].status is status
    assert given.runs == [ref.id]
    assert given.task(ref).result(20) == {}, "a message that comes twice runs nothing"
    assert given.runs == [ref.id]


def test_the_task_of_a_job_that_was_handed_back_runs_nothing(given: GivenJobs) -> None:
    given.one.worker.slots.draining = True
    ref = given.give()
    ending = given.task(ref).result(20)[ref.id]
    assert ending.status is JobStatus.QUEUED
    given.one.flush()
    row = given.one.database.job(ref.id)
    assert (row.status, row.attempt, row.crashes, given.runs) == ("queued", 0, 0, [])


def test_a_store_that_is_away_at_the_end_is_the_tasks_error(
    given: GivenJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise StateStoreUnavailable

    monkeypatch.setattr(pipeline, "execute_claim", fail)
    with pytest.raises(StateStoreUnavailable):
        given.task(given.give()).result(20)


def test_a_task_that_is_ended_ends_its_run(
    given: GivenJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    ref = given.give()
    run = given.one.worker.slots.given.find(ref)
    assert run is not None

    def ended() -> None:
        raise GreenletExit

    monkeypatch.setattr(run.ending, "result", ended)
    with pytest.raises(GreenletExit):
        pipeline.execute((ref,), given.one.worker, given.one.helpers)
    assert given.killed == [run]


def test_a_worker_that_takes_no_messages_does_not_begin_it(given: GivenJobs) -> None:
    given.consumer.strategies.clear()
    ref = given.give()
    claim = given.one.worker.slots.given.take_claim(ref)
    assert claim is not None, "it is handed back as it does not begin"
    assert given.messages == given.runs == []


def test_with_telemetry_the_task_comes_first(
    given: GivenJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its span is the parent of the run's."""
    monkeypatch.setattr(tracing, "telemetry", SimpleNamespace())
    ref = given.give()
    assert given.messages == [ref.id] and given.one.worker.slots.given.find(ref) is None
    monkeypatch.undo()
    given.go_on.set()
    assert given.task(ref).result(20)[ref.id].status is JobStatus.SUCCEEDED


def test_runs_whose_tasks_never_come_are_forgotten(
    given: GivenJobs, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(given_runs, "MOST_KEPT", 2)
    given.go_on.set()
    refs = [given.give() for _ in range(4)]
    wait_for(lambda: len(given.runs) == 4)
    kept = [given.one.worker.slots.given.take(ref) is not None for ref in refs]
    assert kept == [False, False, True, True]
