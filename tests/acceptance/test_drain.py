"""SIGTERM drains a worker: nothing is lost, no try is spent, and it ends in bounded time."""

from __future__ import annotations

import signal
import time
from pathlib import Path

import psutil
import pytest

from loadtest.chaos.checker import check, wait_until_settled
from loadtest.chaos.submitter import ClientLog, Submitter
from tests.acceptance.client import Client, new_role

#: Rolling restarts: so many waves over so many workers.
WAVES, WORKERS = 4, 5
#: A worker whose jobs take a second ends within this time.
DRAIN_SECONDS = 10.0


def restart(client: Client, name: str) -> float:
    """Ask one worker to stop; how long it took to go."""
    worker = psutil.Process(client.stack.pid(name))
    began = time.monotonic()
    worker.send_signal(signal.SIGTERM)
    client.stack.wait(lambda: not worker.is_running(), f"{name} to drain", DRAIN_SECONDS)
    return time.monotonic() - began


def alive_workers(client: Client) -> int:
    """Workers that say so themselves and take new work."""
    sql = """SELECT count(*) FROM processes WHERE kind = 'worker' AND NOT draining
             AND heartbeat_at > now() - interval '5 seconds'"""
    return int(client.rows(sql)[0][0])


def test_running_jobs_finish_and_waiting_ones_go_elsewhere(client: Client) -> None:
    ids = client.submit_sleeps(36, seconds=2.0)
    client.wait_running(ids, 20)
    name = "worker-medium-1"
    pid = client.stack.pid(name)
    running = client.rows(
        "SELECT id::text FROM jobs WHERE status = 'running' AND worker LIKE %s", f"%:{pid}"
    )
    restart(client, name)
    assert not psutil.pid_exists(pid)

    rows = client.wait_ended(ids)
    assert {(row.attempt, row.crashes, row.deferrals) for row in rows} == {(1, 0, 0)}
    finished_there = [row for row in rows if row.worker.endswith(f":{pid}")]
    assert len(running) >= 10, "the worker was to be full"
    assert len(finished_there) >= 10, "what had started was to be finished, not given back"


@pytest.mark.timeout(240)
def test_rolling_restarts_under_load_lose_nothing_and_spend_no_try(
    client: Client, tmp_path: Path
) -> None:
    role, log = new_role(), ClientLog(tmp_path / "promises.jsonl")
    client.stack.command("scale", "worker-medium", str(WORKERS))
    client.stack.wait(lambda: alive_workers(client) >= WORKERS, f"{WORKERS} workers", 40)
    sleeps: list[str] = []
    seconds: list[float] = []
    with Submitter(client.stack.port, log, role=role, per_second=15).running():
        for _ in range(WAVES):
            for number in range(1, WORKERS + 1):
                sleeps += client.submit_sleeps(8, seconds=0.7)
                client.wait_running(sleeps[-8:], 1)
                seconds.append(restart(client, f"worker-medium-{number}"))
            client.stack.wait(lambda: alive_workers(client) >= WORKERS, "the next wave", 40)
    assert len(seconds) == WAVES * WORKERS
    wait_until_settled(client.engine, 30)
    report = check(log.read(), role, client.engine, client.stack.port)
    log.close()
    assert report.ok, f"{report}\n{client.stack.logs()}"
    spent = client.rows(
        """SELECT job.id::text, attempt, crashes, deferrals, worker FROM jobs AS job
           LEFT JOIN applications AS application USING (id)
           WHERE (application.role = %s OR job.id = ANY (%s::uuid[]))
             AND (attempt, crashes, deferrals) <> (1, 0, 0)""",
        role,
        sleeps,
    )
    assert not spent, f"a restart is nobody's failure: {spent[:5]}\n{client.stack.logs()}"
