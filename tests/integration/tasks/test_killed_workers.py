"""A worker that is killed as a whole: its runs come back long before their leases end."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine

from app.policy.wait_reasons import explain
from app.reads.waits import read_facts
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from models.presence import PRESENCE_LOST_SECONDS
from tests.support.database_fixture import DatabaseFixture
from tests.support.worker_process import WorkerProcess, worker_process

pytestmark = pytest.mark.long


@pytest.fixture
def process(
    engine: Engine, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> Iterator[WorkerProcess]:
    """Of a pool with a lease of a minute."""
    database, url = DatabaseFixture(engine), rabbitmq.service.url()
    with worker_process(database, url, tmp_path, "native", 2, "prefork") as process:
        yield process


def test_killed_with_its_parent_and_back_within_ten_seconds(process: WorkerProcess) -> None:
    job_id = process.submit("long_nap", "native", seconds=20)
    process.wait(lambda: process.database.job(job_id).status == "running", "a busy machine", 60)
    assert process.worker is not None
    children = psutil.Process(process.worker.pid).children()
    killed_at = time.monotonic()
    for pid in (process.worker.pid, *(child.pid for child in children)):
        os.kill(pid, signal.SIGKILL)

    def lost() -> bool:
        with process.database.engine.connect() as connection:
            found = read_facts(connection, job_id)
        assert found is not None
        return explain(found.facts).reason == "worker_lost"

    process.wait(lost, "/wait to say that the worker is lost", PRESENCE_LOST_SECONDS + 10)

    def back() -> bool:
        return bool(process.database.job(job_id).crashes)

    process.wait(back, "the run to come back", 25)
    assert time.monotonic() - killed_at < 20, "a busy machine may take twice as long"


def test_native_code_that_lets_nothing_else_run_is_no_loss(process: WorkerProcess) -> None:
    """Neither heartbeat nor watchdog of the child can report: the parent does."""
    job_id = process.submit("hold_natively", "native", seconds=int(PRESENCE_LOST_SECONDS) + 5)
    row = process.wait_ended(job_id, 90)
    assert (row.status, row.lease, row.crashes) == ("succeeded", 1, 0)
