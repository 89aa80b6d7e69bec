"""Real workers that are given jobs by a real API: killed, frozen, stopped, without a broker."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from models.jobs.admit_alone import admit_alone
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from tests.support.database_fixture import DatabaseFixture
from tests.support.worker_process import WorkerProcess, worker_process


@pytest.fixture
def process(
    engine: Engine, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> Iterator[WorkerProcess]:
    database, url = DatabaseFixture(engine), rabbitmq.service.url()
    with worker_process(database, url, tmp_path, "short", 4, "gevent") as process:
        yield process


def offers(process: WorkerProcess) -> list[str]:
    rows = process.database.query("SELECT offers FROM express_lanes WHERE pool = 'short'")
    return list(rows[0].offers) if rows else []


def give(process: WorkerProcess, type_: str = "echo", payload: str = '"hello"') -> str:
    """A job for the worker that offers to run it; its id."""
    process.wait(lambda: offers(process), "an offer", 60)
    # Only whoever has the credit that the scheduler grants for free slots may dispatch.
    item = Submission(id=new_id(), tenant_id=1, type=type_, pool="short", payload=payload)

    def given() -> bool:
        found = admit_alone(process.database.engine, SubmissionGroup((item,)), True, True)
        return found.given

    process.database.execute(
        "UPDATE express_lanes SET credit = greatest(credit, 1), granted_at = now()"
    )
    assert given()
    return item.id


def test_jobs_run_without_a_message(process: WorkerProcess) -> None:
    for _ in range(3):
        job_id = give(process)
        row = process.wait_ended(job_id)
        assert (row.status, row.result, row.lease, row.crashes) == ("succeeded", "hello", 1, 0)


def test_a_type_that_the_worker_does_not_know_is_put_off(process: WorkerProcess) -> None:
    job_id = give(process, "of_a_newer_version")
    process.wait(lambda: process.database.job(job_id).status == "scheduled", "it to be put off")
    row = process.database.job(job_id)
    assert (row.attempt, row.lease) == (0, 1), "by the worker that was given it"


def test_a_worker_that_is_killed_with_a_given_job_loses_nothing(process: WorkerProcess) -> None:
    """Between the commit and the run: the message is sent to a process that is stopped."""
    process.wait(lambda: offers(process), "an offer", 60)
    assert process.worker is not None
    first = process.worker.pid
    os.kill(first, signal.SIGSTOP)
    job_id = give(process)
    row = process.database.job(job_id)
    assert row.status == "running"
    os.kill(first, signal.SIGKILL)
    row = process.wait_ended(job_id, 60)
    assert (row.status, row.result, row.lease) == ("succeeded", "hello", 2)


def test_a_frozen_worker_does_not_begin_what_was_taken_from_it(
    process: WorkerProcess, tmp_path: Path
) -> None:
    trace = tmp_path / "trace"
    payload = json.dumps({"path": str(trace)})
    process.wait(lambda: offers(process), "an offer", 60)
    assert process.worker is not None
    os.kill(process.worker.pid, signal.SIGSTOP)
    try:
        job_id = give(process, "leave_trace", payload)
        # As the reaper does when the worker was silent for long.
        process.database.execute(
            "UPDATE jobs SET status = 'cancelled', finished_at = now() WHERE id = %s", job_id
        )
        time.sleep(1.5)
    finally:
        os.kill(process.worker.pid, signal.SIGCONT)
    later = give(process, "leave_trace", payload)
    assert process.wait_ended(later).status == "succeeded"
    assert process.database.job(job_id).status == "cancelled"
    assert trace.read_text().split() == [later]


def test_a_second_signal_hands_back_what_runs(process: WorkerProcess, tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    napping = give(process, "nap", '{"seconds": 25}')
    # They begin in the order in which they were given.
    later = give(process, "leave_trace", json.dumps({"path": str(trace)}))
    assert process.wait_ended(later).status == "succeeded"
    assert process.worker is not None
    process.hold()
    process.worker.send_signal(signal.SIGTERM)
    process.wait(lambda: not offers(process), "the drain to begin")
    assert process.database.job(napping).status == "running", "it may go on while it is let"
    process.worker.send_signal(signal.SIGQUIT)
    process.wait(lambda: process.database.job(napping).status != "running", "a hand-back", 10)
    row = process.database.job(napping)
    assert (row.attempt, row.crashes, row.deferrals) == (0, 0, 1)
    process.worker.wait(20)


def test_a_worker_that_is_stopped_takes_its_offer_back(process: WorkerProcess) -> None:
    process.wait(lambda: offers(process), "an offer", 60)
    process.hold()
    assert process.worker is not None
    process.worker.send_signal(signal.SIGTERM)
    process.worker.wait(30)
    assert offers(process) == []
