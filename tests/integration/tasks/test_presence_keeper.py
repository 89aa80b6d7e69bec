"""A green worker that cannot report: alive, its runs stay; frozen or killed, they come back."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import psutil
import pytest
from sqlalchemy import Engine

from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from app.stack.spec import PROJECT_ROOT
from models.presence import (
    KEEP_PRESENT,
    PRESENCE_LOST_SECONDS,
    PRESENCE_SECONDS,
    Presence,
    announce,
)
from models.store.session import fetch
from tasks.watchdog.emergency_write import connect_arguments
from tasks.watchdog.presence_keeper import LATE_SECONDS, PresenceKeeper
from tests.support.database_fixture import DatabaseFixture
from tests.support.worker_process import WorkerProcess, worker_process

pytestmark = pytest.mark.long


@pytest.fixture
def process(
    engine: Engine, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> Iterator[WorkerProcess]:
    """Of a pool with a lease of half a minute."""
    database, url = DatabaseFixture(engine), rabbitmq.service.url()
    with worker_process(database, url, tmp_path, "medium", 5, "gevent") as process:
        yield process


def keepers_of(worker: int) -> list[psutil.Process]:
    """The processes that keep the presence of a worker."""
    children = psutil.Process(worker).children()
    return [child for child in children if "presence_keeper.py" in " ".join(child.cmdline())]


def test_native_code_costs_no_neighbour_its_run(process: WorkerProcess) -> None:
    """Neither heartbeat nor watchdog of the worker can report meanwhile."""
    held = int(PRESENCE_LOST_SECONDS) + 5
    ids = [process.submit("nap", "medium", seconds=held + 3) for _ in range(4)]
    for job_id in ids:
        process.wait_running(job_id)
    ids.append(process.submit("hold_natively", "medium", seconds=held))
    rows = [process.wait_ended(job_id, 60) for job_id in ids]
    assert {(row.status, row.lease, row.crashes) for row in rows} == {("succeeded", 1, 0)}


def test_it_reports_for_as_long_as_a_lease(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    """Longer than that a worker hangs, and the reaper is to find it."""
    # As ``celery -A app worker`` leaves it.
    monkeypatch.setattr(
        sys, "path", [one for one in sys.path if Path(one).resolve() != PROJECT_ROOT]
    )
    announce(engine, Presence("w1", "worker"))
    lease = PRESENCE_LOST_SECONDS
    keeper = PresenceKeeper("w1", lease, KEEP_PRESENT, connect_arguments(engine.url))
    began = time.monotonic()
    keeper.start()
    reports: dict[datetime, float] = {}
    while time.monotonic() - began < lease + 2 * PRESENCE_SECONDS:
        [row] = fetch(engine, "SELECT heartbeat_at FROM processes")
        reports.setdefault(row.heartbeat_at, time.monotonic() - began)
        time.sleep(0.05)
    keeper.stop()
    first, *kept = reports.values()
    assert first < LATE_SECONDS
    assert kept and kept[-1] < lease + PRESENCE_SECONDS


def test_frozen_worker_is_silent_and_a_killed_one_takes_its_keeper_along(
    process: WorkerProcess,
) -> None:
    job_id = process.submit("nap", "medium", seconds=25)
    process.wait_running(job_id)
    assert process.worker is not None
    worker = process.worker.pid
    [keeper] = keepers_of(worker)
    process.hold()
    os.kill(worker, signal.SIGSTOP)
    frozen_at = time.monotonic()
    process.wait(lambda: process.database.job(job_id).crashes, "the run to come back", 25)
    assert time.monotonic() - frozen_at < 20
    assert keeper.is_running(), "it ends with its worker, not before"
    os.kill(worker, signal.SIGKILL)
    assert not psutil.wait_procs([keeper], 15)[1]
