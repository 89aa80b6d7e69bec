"""SIGTERM drains a worker: nothing is lost, no try is spent, and it ends in bounded time."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from loadtest.chaos.facts import wait_until_settled
from tests.acceptance.client import Client, new_role, scale
from tests.support.promises import ClientLog, Submitter, check

pytestmark = pytest.mark.long

#: Rolling restarts, two workers at a time, round and round.
RESTARTS, WORKERS = 20, 6
#: A worker whose jobs take a second ends within this time.
DRAIN_SECONDS = 10.0


def restart(client: Client, *numbers: int) -> None:
    """Ask workers to stop and wait until they are gone; the supervisor replaces them."""
    pids = client.stack.pids()
    workers = [psutil.Process(pids[f"worker-medium-{number}"]) for number in numbers]
    for worker in workers:
        worker.terminate()
    client.stack.wait(
        lambda: not any(worker.is_running() for worker in workers),
        f"the workers {numbers} to drain",
        DRAIN_SECONDS,
    )


def wait_alive(client: Client, *numbers: int) -> None:
    """Wait until the workers themselves say that they take new work."""
    sql = "SELECT name FROM processes WHERE kind = 'worker' AND NOT draining"

    def alive() -> bool:
        present = {int(row.name.rpartition(":")[2]) for row in client.rows(sql)}
        pids = client.stack.pids()
        return present >= {pids.get(f"worker-medium-{number}", 0) for number in numbers}

    client.stack.wait(alive, f"the workers {numbers} to be there", 60)


def test_running_jobs_finish_and_waiting_ones_go_elsewhere(client: Client) -> None:
    ids = client.submit_sleeps(36, seconds=3.0)
    client.wait_running(ids, 20)
    pid = client.stack.pid("worker-medium-1")
    # A claim that no slot has begun is given back: wait until the worker reports full slots.
    busy = "SELECT 1 FROM processes WHERE name LIKE %s AND busy = slots"
    client.stack.wait(lambda: bool(client.rows(busy, f"%:{pid}")), "full slots", 30)
    running = client.rows(
        "SELECT id::text FROM jobs WHERE status = 'running' AND worker LIKE %s", f"%:{pid}"
    )
    restart(client, 1)

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
    scale(client.stack, "worker-medium", WORKERS)
    sleeps: list[str] = []
    with Submitter(client.stack.port, log, role=role, per_second=15).running():
        for step in range(RESTARTS // 2):
            pair = (step * 2 % WORKERS + 1, step * 2 % WORKERS + 2)
            wait_alive(client, *pair)
            sleeps += client.submit_sleeps(16, seconds=0.7)
            client.wait_running(sleeps[-16:], 4)
            restart(client, *pair)
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
