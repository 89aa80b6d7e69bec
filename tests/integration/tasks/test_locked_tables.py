"""Somebody holds a lock on ``jobs`` for longer than a lease: no healthy run is reaped."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from sqlalchemy import Engine

from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from tests.support.database_fixture import DatabaseFixture
from tests.support.locks import held_lock
from tests.support.worker_process import POOLS, WorkerProcess, worker_process

pytestmark = pytest.mark.long

#: A lease, how long the lock is held, and how long the jobs run, in seconds.
LEASE, HELD, RUN = 4.0, 9.0, 13.0


@pytest.fixture
def process(
    engine: Engine, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> Iterator[WorkerProcess]:
    changes = {**POOLS, "short": {"lease_seconds": LEASE}}
    database = DatabaseFixture(engine)
    url = rabbitmq.service.url()
    with worker_process(database, url, tmp_path, "short", 20, "gevent", changes) as process:
        yield process


def hold(process: WorkerProcess, sql: str, *parameters: str) -> None:
    with held_lock(process.database, sql, *parameters):
        time.sleep(HELD)


@pytest.mark.parametrize("locked", ["a row", "the table"])
def test_nothing_is_reaped_while_somebody_holds_a_lock(process: WorkerProcess, locked: str) -> None:
    ids = [process.submit("nap", "short", seconds=RUN) for _ in range(20)]
    for job_id in ids:
        process.wait_running(job_id)
    if locked == "a row":
        hold(process, "SELECT FROM jobs WHERE id = %s FOR UPDATE", ids[7])
    else:
        hold(process, "LOCK TABLE jobs IN SHARE MODE")  # as a plain CREATE INDEX does
    rows = [process.wait_ended(job_id, 30) for job_id in ids]
    ends = {(row.status, row.lease, row.attempt, row.crashes) for row in rows}
    assert ends == {("succeeded", 1, 1, 0)}, process.log.read_text()
    assert not process.database.query("SELECT FROM attempts")
