"""Runaways in prefork children: each is ended, children are replaced, the parent lives on."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import psutil
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
    pools, url = "long,native", rabbitmq.service.url()
    with worker_process(DatabaseFixture(engine), url, tmp_path, pools, 4, "prefork") as process:
        yield process


def pid_of(worker: str) -> int:
    return int(worker.rpartition(":")[2])


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def test_a_prefork_worker_ends_what_does_not_end(process: WorkerProcess) -> None:
    counts_on_after_a_kill(process)
    parent = process.worker
    told_to_stop_and_stops(process)
    assert killed(process) == {}
    deaf_to_everything(process)
    assert killed(process) == {"1:long": 2, "1:native": 1}, "processes that were killed for a run"
    assert process.worker is parent, "only children die"
    goes_on_elsewhere(process)
    assert not process.database.miscounted()


def killed(process: WorkerProcess) -> dict[str, int]:
    """What counts against tenants, by pool."""
    rows = process.database.query("SELECT name, total FROM tallies WHERE kind = 'crash'")
    return {row.name: row.total for row in rows}


def counts_on_after_a_kill(process: WorkerProcess) -> None:
    """A killed child costs no try and no finished step; its checkpoints are large."""
    payload = {"to": 10, "seconds_each": 0.1, "ballast_bytes": 5_000_000}
    job_id = process.submit("count", "long", **payload)

    def steps() -> int:
        sql = "SELECT (progress ->> 'done')::int FROM jobs WHERE id = %s"
        return int(process.database.query(sql, job_id)[0][0] or 0)

    process.wait(
        lambda: process.database.query("SELECT 1 FROM checkpoints WHERE blob LIKE '%%.7.%%'"), "7"
    )
    victim = pid_of(process.database.job(job_id).worker)
    os.kill(victim, signal.SIGKILL)
    row = process.wait_ended(job_id, 30)
    assert (row.status, row.attempt, row.crashes) == ("succeeded", 1, 1)
    assert [step for step, _ in row.result["steps"]] == list(range(1, 11)), "a step ran twice"
    assert row.result["runs"] in ([1, 8], [1, 9]), "finished steps are not repeated"
    assert pid_of(row.worker) != victim
    assert steps() == 10


def told_to_stop_and_stops(process: WorkerProcess) -> None:
    """What can be interrupted is, and its process goes on."""
    hostile = {
        "long_oversleep": ("TIMEOUT", process.submit("long_oversleep", "long")),
        "backtrack": ("TIMEOUT", process.submit("backtrack", "long")),
        "costly_spin": ("RESOURCE_VIOLATION", process.submit("costly_spin", "long")),
        "hoard": ("RESOURCE_VIOLATION", process.submit("hoard", "long", bytes=10_000_000)),
        "hoard slowly": (
            "RESOURCE_VIOLATION",
            process.submit("hoard", "long", bytes=1_000_000, pause=0.01),
        ),
        "stand_still": ("RESOURCE_VIOLATION", process.submit("stand_still", "long")),
        "report_only": ("RESOURCE_VIOLATION", process.submit("report_only", "long")),
    }
    saving = process.submit("save_now_and_then", "long", steps=4)
    counting = process.submit("count", "long", to=1000, seconds_each=0.1)
    process.wait_running(counting)
    cancel(process.database.engine, 1, counting)
    row = process.wait_ended(counting, 5)
    assert row.status == "cancelled"
    for name, (failure, job_id) in hostile.items():
        row = process.wait_ended(job_id, 30)
        assert (row.status, row.error_class, row.crashes) == ("dead", failure, 0), name
    assert process.wait_ended(saving).status == "succeeded"
    message = process.database.job(hostile["report_only"][1]).error_message
    assert "no checkpoint" in message and "requires one every 2 s" in message
    assert process.attempts(hostile["long_oversleep"][1]) == ["TIMEOUT"] * 2
    assert process.attempts(hostile["costly_spin"][1]) == ["RESOURCE_VIOLATION"] * 2


def deaf_to_everything(process: WorkerProcess) -> None:
    """What cannot be interrupted takes its process along, also if that is native code."""
    ends: dict[str, tuple[str, Any]] = {
        "turn_natively": ("dead", "TIMEOUT"),
        "long_deaf": ("dead", "TIMEOUT"),
        "deaf_to_cancelling": ("cancelled", None),
    }
    pools = {"turn_natively": "native"}
    ids = {name: process.submit(name, pools.get(name, "long")) for name in ends}
    process.wait_running(ids["deaf_to_cancelling"])
    cancel(process.database.engine, 1, ids["deaf_to_cancelling"])
    for name, end in ends.items():
        row = process.wait_ended(ids[name], 30)
        assert (row.status, row.error_class, row.crashes) == (*end, 0), name
        process.wait(partial(is_gone, pid_of(row.worker)), f"the process of {name} to be gone")


def goes_on_elsewhere(process: WorkerProcess) -> None:
    """A worker that stops hands its runs back, each in its own way; none spends a try."""
    counting = process.submit("count", "long", to=1000, seconds_each=0.1)
    napping = process.submit("long_nap", "native", seconds=25)
    process.wait_running(counting), process.wait_running(napping)
    assert process.worker is not None
    process.hold()
    process.worker.terminate()
    handed_back(process, counting)
    assert process.database.job(napping).status == "running", (
        "it may go on for as long as it is let"
    )
    process.worker.send_signal(signal.SIGQUIT)
    handed_back(process, napping)


def handed_back(process: WorkerProcess, job_id: str) -> None:
    def queued() -> Any:
        row = process.database.job(job_id)
        return row if row.status != "running" else None

    row = process.wait(queued, f"{job_id} to be handed back", 10)
    assert (row.attempt, row.crashes, row.deferrals) == (0, 0, 1)
    assert row.status in ("queued", "dispatched")
