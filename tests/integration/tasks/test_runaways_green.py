"""Runaways in a gevent worker: each is ended, the worker lives if it can, neighbours finish.

One worker for all of it, as in life: a process that is killed is replaced.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from models.jobs.cancel import cancel
from tests.support.database_fixture import DatabaseFixture
from tests.support.worker_process import WorkerProcess, worker_process

pytestmark = pytest.mark.long


@pytest.fixture
def process(
    engine: Engine, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> Iterator[WorkerProcess]:
    with worker_process(
        DatabaseFixture(engine), rabbitmq.service.url(), tmp_path, "short", 20, "gevent"
    ) as process:
        yield process


def nap(process: WorkerProcess, count: int, seconds: float) -> list[str]:
    return [process.submit("nap", "short", seconds=seconds) for _ in range(count)]


def test_a_green_worker_ends_what_does_not_end(process: WorkerProcess) -> None:
    told_to_stop_and_stops(process)
    deaf_to_everything(process)
    counts_only_what_had_begun(process)


def told_to_stop_and_stops(process: WorkerProcess) -> None:
    """What can be interrupted is, and nobody else notices."""
    first = nap(process, 1, 0.0)[0]
    name = process.wait_ended(first).worker
    neighbours = nap(process, 5, 3.0)
    process.wait_running(neighbours[-1])
    spin, oversleep = process.submit("spin", "short"), process.submit("oversleep", "short")
    endless = process.submit("nap", "short", seconds=20)
    process.wait_running(endless)
    cancel(process.database.engine, 1, endless)

    row = process.wait_ended(spin, 30)
    assert (row.status, row.error_class, row.attempt) == ("dead", "RESOURCE_VIOLATION", 2)
    assert "without yielding" in row.error_message
    assert process.attempts(spin) == ["RESOURCE_VIOLATION"] * 2, "once retried, then dead"
    row = process.wait_ended(oversleep)
    assert (row.status, row.attempt) == ("dead", 2)
    assert process.attempts(oversleep) == ["TIMEOUT", "TIMEOUT"]
    assert process.wait_ended(endless).status == "cancelled"
    for neighbour in neighbours:
        row = process.wait_ended(neighbour)
        assert (row.status, row.attempt, row.crashes, row.lease) == ("succeeded", 1, 0, 1)
        assert row.worker == name, "the worker survives all of it"


def deaf_to_everything(process: WorkerProcess) -> None:
    """What cannot be interrupted takes its process along; the neighbours go elsewhere."""
    neighbours = nap(process, 5, 4.0)
    process.wait_running(neighbours[-1])
    ends = {"deaf": "TIMEOUT", "deaf_spin": "RESOURCE_VIOLATION"}
    ids = {name: process.submit(name, "short") for name in ends}
    for name, failure in ends.items():
        row = process.wait_ended(ids[name], 30)
        assert (row.status, row.error_class, row.attempt) == ("dead", failure, 1), name
        assert row.crashes == 0, "the watchdog said what it was"
    (log,) = process.database.query(
        "SELECT traceback FROM run_logs WHERE job_id = %s", ids["deaf_spin"]
    )
    assert "in deaf_spin" in log.traceback and "in spin" in log.traceback
    assert "celery" not in log.traceback
    for neighbour in neighbours:
        row = process.wait_ended(neighbour, 30)
        assert (row.status, row.attempt, row.crashes) == ("succeeded", 1, 0)
    assert max(process.database.job(neighbour).lease for neighbour in neighbours) > 1, (
        "nobody was hit"
    )
    assert not process.database.miscounted()


def counts_only_what_had_begun(process: WorkerProcess) -> None:
    """The worker is killed with all slots in use and more jobs claimed than it has slots."""
    ids = nap(process, 30, 4.0)
    sql = "SELECT count(*) FILTER (WHERE waiting_lease = lease) AS waiting, count(*) AS claimed"
    sql += " FROM jobs WHERE status = 'running'"

    def full() -> bool:
        [row] = process.database.query(sql)
        return bool(row.claimed > 20 and row.waiting)

    process.wait(full, "more claims than slots")
    assert process.worker is not None
    process.worker.kill()
    for job_id in ids:
        process.wait_ended(job_id, 40)
    rows = [process.database.job(job_id) for job_id in ids]
    assert {row.status for row in rows} == {"succeeded"}
    assert sum(job.crashes for job in rows) <= 20, "no more than there are slots"
    assert sum(job.lost_claims for job in rows) >= 1
    assert all(not (job.crashes and job.lost_claims) for job in rows)
