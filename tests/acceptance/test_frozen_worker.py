"""A worker that is frozen past its lease and thaws after another one finished its job."""

from __future__ import annotations

import os
import signal
import time

import pytest

from tests.acceptance.client import Client

pytestmark = pytest.mark.long

#: How long the settled row is watched for a change: more than another lease.
WATCH_SECONDS = 10.0


def pid_of(worker: str) -> int:
    """The process behind the name in the row."""
    return int(worker.rpartition(":")[2])


def log_name(client: Client, pid: int) -> str:
    return next(name for name, one in client.stack.pids().items() if one == pid)


def test_thawed_worker_is_refused_and_goes_on_working(client: Client) -> None:
    [job_id] = client.submit_sleeps(1, seconds=3.0)
    client.wait_running([job_id], 1)
    first = client.job(job_id)
    frozen = pid_of(first.worker)
    name = log_name(client, frozen)
    os.kill(frozen, signal.SIGSTOP)
    try:
        [settled] = client.wait_ended([job_id], seconds=60)
    finally:
        os.kill(frozen, signal.SIGCONT)

    assert settled.worker != first.worker, "nobody else can have finished it"
    assert settled.lease > first.lease
    assert (settled.attempt, settled.crashes) == (1, 1)
    thawed_at = time.monotonic()
    log = client.stack.home.log(name)
    client.stack.wait(
        lambda: f"lease {first.lease} of job {job_id} was lost" in log.read_text(errors="replace"),
        f"{name} to notice that its result was rejected",
        30,
    )
    assert "was rejected" in log.read_text(errors="replace")

    def works_again() -> bool:
        ids = client.submit_sleeps(20, seconds=0.2)
        return first.worker in {row.worker for row in client.wait_ended(ids)}

    client.stack.wait(works_again, f"the thawed {name} to run new jobs", 60)
    time.sleep(max(0.0, thawed_at + WATCH_SECONDS - time.monotonic()))
    assert client.job(job_id) == settled, "the row of a settled job never changes"
