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


@pytest.fixture
def shop(
    engine: Engine, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> Iterator[WorkerProcess]:
    pools, url = "long,native", rabbitmq.service.url()
    with worker_process(DatabaseFixture(engine), url, tmp_path, pools, 4, "prefork") as shop:
        yield shop


def pid_of(worker: str) -> int:
    return int(worker.rpartition(":")[2])


def is_gone(pid: int) -> bool:
    return not psutil.pid_exists(pid)


def test_a_prefork_worker_ends_what_does_not_end(shop: WorkerProcess) -> None:
    counts_on_after_a_kill(shop)
    parent = shop.worker
    told_to_stop_and_stops(shop)
    assert killed(shop) == {}
    deaf_to_everything(shop)
    assert killed(shop) == {"1:long": 2, "1:native": 1}, "processes that were killed for a run"
    assert shop.worker is parent, "only children die"
    goes_on_elsewhere(shop)
    assert not shop.database.miscounted()


def killed(shop: WorkerProcess) -> dict[str, int]:
    """What counts against tenants, by pool."""
    rows = shop.database.query("SELECT name, total FROM tallies WHERE kind = 'crash'")
    return {row.name: row.total for row in rows}


def counts_on_after_a_kill(shop: WorkerProcess) -> None:
    """A killed child costs no try and no finished step; its checkpoints are large."""
    payload = {"to": 10, "seconds_each": 0.1, "ballast_bytes": 5_000_000}
    job_id = shop.submit("count", "long", **payload)

    def steps() -> int:
        sql = "SELECT (progress ->> 'done')::int FROM jobs WHERE id = %s"
        return int(shop.database.query(sql, job_id)[0][0] or 0)

    shop.wait(lambda: shop.database.query("SELECT 1 FROM checkpoints WHERE blob LIKE '%%.7'"), "7")
    victim = pid_of(shop.database.job(job_id).worker)
    os.kill(victim, signal.SIGKILL)
    row = shop.wait_ended(job_id, 30)
    assert (row.status, row.attempt, row.crashes) == ("succeeded", 1, 1)
    assert [step for step, _ in row.result["steps"]] == list(range(1, 11)), "a step ran twice"
    assert row.result["runs"] in ([1, 8], [1, 9]), "finished steps are not repeated"
    assert pid_of(row.worker) != victim
    assert steps() == 10


def told_to_stop_and_stops(shop: WorkerProcess) -> None:
    """What can be interrupted is, and its process goes on."""
    hostile = {
        "long_oversleep": ("TIMEOUT", shop.submit("long_oversleep", "long")),
        "backtrack": ("TIMEOUT", shop.submit("backtrack", "long")),
        "costly_spin": ("RESOURCE_VIOLATION", shop.submit("costly_spin", "long")),
        "hoard": ("RESOURCE_VIOLATION", shop.submit("hoard", "long", bytes=10_000_000)),
        "hoard slowly": (
            "RESOURCE_VIOLATION",
            shop.submit("hoard", "long", bytes=1_000_000, pause=0.01),
        ),
        "stand_still": ("RESOURCE_VIOLATION", shop.submit("stand_still", "long")),
    }
    counting = shop.submit("count", "long", to=1000, seconds_each=0.1)
    shop.wait_running(counting)
    cancel(shop.database.engine, 1, counting)
    row = shop.wait_ended(counting, 5)
    assert row.status == "cancelled"
    for name, (failure, job_id) in hostile.items():
        row = shop.wait_ended(job_id, 30)
        assert (row.status, row.error_class, row.crashes) == ("dead", failure, 0), name
    assert shop.attempts(hostile["long_oversleep"][1]) == ["TIMEOUT"] * 2
    assert shop.attempts(hostile["costly_spin"][1]) == ["RESOURCE_VIOLATION"] * 2


def deaf_to_everything(shop: WorkerProcess) -> None:
    """What cannot be interrupted takes its process along, also if that is native code."""
    ends: dict[str, tuple[str, Any]] = {
        "turn_natively": ("dead", "TIMEOUT"),
        "long_deaf": ("dead", "TIMEOUT"),
        "deaf_to_cancelling": ("cancelled", None),
    }
    pools = {"turn_natively": "native"}
    ids = {name: shop.submit(name, pools.get(name, "long")) for name in ends}
    shop.wait_running(ids["deaf_to_cancelling"])
    cancel(shop.database.engine, 1, ids["deaf_to_cancelling"])
    for name, end in ends.items():
        row = shop.wait_ended(ids[name], 30)
        assert (row.status, row.error_class, row.crashes) == (*end, 0), name
        shop.wait(partial(is_gone, pid_of(row.worker)), f"the process of {name} to be gone")


def goes_on_elsewhere(shop: WorkerProcess) -> None:
    """A worker that stops hands its runs back, each in its own way; none spends a try."""
    counting = shop.submit("count", "long", to=1000, seconds_each=0.1)
    napping = shop.submit("long_nap", "native", seconds=25)
    shop.wait_running(counting), shop.wait_running(napping)
    assert shop.worker is not None
    shop.hold()
    shop.worker.terminate()
    handed_back(shop, counting)
    assert shop.database.job(napping).status == "running", "it may go on for as long as it is let"
    shop.worker.send_signal(signal.SIGQUIT)
    handed_back(shop, napping)


def handed_back(shop: WorkerProcess, job_id: str) -> None:
    def queued() -> Any:
        row = shop.database.job(job_id)
        return row if row.status != "running" else None

    row = shop.wait(queued, f"{job_id} to be handed back", 10)
    assert (row.attempt, row.crashes, row.deferrals) == (0, 0, 1)
    assert row.status in ("queued", "dispatched")
