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


@pytest.fixture
def shop(
    engine: Engine, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> Iterator[WorkerProcess]:
    with worker_process(
        DatabaseFixture(engine), rabbitmq.service.url(), tmp_path, "short", 20, "gevent"
    ) as shop:
        yield shop


def nap(shop: WorkerProcess, count: int, seconds: float) -> list[str]:
    return [shop.submit("nap", "short", seconds=seconds) for _ in range(count)]


def test_a_green_worker_ends_what_does_not_end(shop: WorkerProcess) -> None:
    told_to_stop_and_stops(shop)
    deaf_to_everything(shop)
    counts_only_what_had_begun(shop)


def told_to_stop_and_stops(shop: WorkerProcess) -> None:
    """What can be interrupted is, and nobody else notices."""
    first = nap(shop, 1, 0.0)[0]
    process = shop.wait_ended(first).worker
    neighbours = nap(shop, 5, 3.0)
    shop.wait_running(neighbours[-1])
    spin, oversleep = shop.submit("spin", "short"), shop.submit("oversleep", "short")
    endless = shop.submit("nap", "short", seconds=20)
    shop.wait_running(endless)
    cancel(shop.database.engine, 1, endless)

    row = shop.wait_ended(spin, 30)
    assert (row.status, row.error_class, row.attempt) == ("dead", "RESOURCE_VIOLATION", 2)
    assert "without yielding" in row.error_message
    assert shop.attempts(spin) == ["RESOURCE_VIOLATION"] * 2, "once retried, then dead"
    row = shop.wait_ended(oversleep)
    assert (row.status, row.attempt) == ("dead", 2)
    assert shop.attempts(oversleep) == ["TIMEOUT", "TIMEOUT"]
    assert shop.wait_ended(endless).status == "cancelled"
    for neighbour in neighbours:
        row = shop.wait_ended(neighbour)
        assert (row.status, row.attempt, row.crashes, row.lease) == ("succeeded", 1, 0, 1)
        assert row.worker == process, "the worker survives all of it"


def deaf_to_everything(shop: WorkerProcess) -> None:
    """What cannot be interrupted takes its process along; the neighbours go elsewhere."""
    neighbours = nap(shop, 5, 4.0)
    shop.wait_running(neighbours[-1])
    ends = {"deaf": "TIMEOUT", "deaf_spin": "RESOURCE_VIOLATION"}
    ids = {name: shop.submit(name, "short") for name in ends}
    for name, failure in ends.items():
        row = shop.wait_ended(ids[name], 30)
        assert (row.status, row.error_class, row.attempt) == ("dead", failure, 1), name
        assert row.crashes == 0, "the watchdog said what it was"
    for neighbour in neighbours:
        row = shop.wait_ended(neighbour, 30)
        assert (row.status, row.attempt, row.crashes) == ("succeeded", 1, 0)
    assert max(shop.database.job(neighbour).lease for neighbour in neighbours) > 1, "nobody was hit"
    assert not shop.database.miscounted()


def counts_only_what_had_begun(shop: WorkerProcess) -> None:
    """The worker is killed with all slots in use and more jobs claimed than it has slots."""
    ids = nap(shop, 30, 4.0)
    sql = "SELECT count(*) FILTER (WHERE waiting_lease = lease) AS waiting, count(*) AS claimed"
    sql += " FROM jobs WHERE status = 'running'"

    def full() -> bool:
        [row] = shop.database.query(sql)
        return bool(row.claimed > 20 and row.waiting)

    shop.wait(full, "more claims than slots")
    assert shop.worker is not None
    shop.worker.kill()
    for job_id in ids:
        shop.wait_ended(job_id, 40)
    rows = [shop.database.job(job_id) for job_id in ids]
    assert {row.status for row in rows} == {"succeeded"}
    assert sum(job.crashes for job in rows) <= 20, "no more than there are slots"
    assert sum(job.lost_claims for job in rows) >= 1
    assert all(not (job.crashes and job.lost_claims) for job in rows)
