"""Flower counts every task of a busy worker, though it is shown only some of them."""

from __future__ import annotations

import json
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery import Celery
from prometheus_client.parser import text_string_to_metric_families

from app.broker.queues import job_queue
from app.stack.ports import free_port
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from models.jobs.dispatch import Dispatch
from tests.support.commands import BIN, commands, wait_for_answer, worker
from tests.support.database_fixture import DatabaseFixture
from tests.support.waiting import wait_for

TASKS, FAILING = 60, 3
#: Shown at once: what the rate allows in five seconds.
RATE = {"FAIRLINE_FLOWER_TASKS_PER_SECOND": "1"}


class Flower:
    """What Flower says."""

    def __init__(self, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"

    def ask(self, path: str) -> Any:
        with urllib.request.urlopen(self.url + path, timeout=10) as answer:
            return answer.read().decode()

    def worker(self) -> dict[str, Any]:
        """The only row of its page of workers; empty while it has not heard of one."""
        with suppress(OSError):
            rows: list[dict[str, Any]] = json.loads(self.ask("/workers?json=1"))["data"]
            return rows[0] if rows else {}
        return {}

    def tasks(self) -> list[dict[str, Any]]:
        """Its page of tasks."""
        query = "draw=1&start=0&length=100&order%5B0%5D%5Bcolumn%5D=0"
        found: list[dict[str, Any]] = json.loads(self.ask(f"/tasks/datatable?{query}"))["data"]
        return found

    def metrics(self) -> dict[tuple[str, ...], float]:
        """Values of ``/metrics`` by name, task and type of event."""
        return {
            (sample.name, sample.labels["task"], sample.labels.get("type", "")): sample.value
            for family in text_string_to_metric_families(self.ask("/metrics"))
            for sample in family.samples
            if "task" in sample.labels and "le" not in sample.labels
        }


@pytest.fixture
def broker(rabbitmq: Running[EmbeddedRabbitMQ]) -> Iterator[kombu.Connection]:
    with kombu.Connection(rabbitmq.service.url()) as connection:
        connection.default_channel.queue_delete("medium")
        yield connection
        connection.default_channel.queue_delete("medium")


def marked(database: DatabaseFixture) -> list[Dispatch]:
    """Jobs that were dispatched, most of which will succeed."""
    for _ in range(TASKS):
        database.submit(type="sleep", payload='{"seconds": 0.001}')
    for _ in range(FAILING):
        database.submit(type="fail", payload='{"class": "PERMANENT", "message": "no such role"}')
    return database.dispatch("medium")


def send(broker: kombu.Connection, jobs: Sequence[Dispatch]) -> None:
    """Each in a message of its own."""
    celery = Celery("test", amqp="app.broker.amqp:JobAmqp")
    celery.conf.update(task_queues=[job_queue("medium")], task_create_missing_queues=False)
    for job in jobs:
        refs = ([[job.id, job.lease]],)
        celery.send_task(job.type, args=refs, task_id=job.id, queue="medium", connection=broker)


@pytest.mark.parametrize("kind", ["gevent", "prefork"])
def test_sums_are_those_of_all_tasks(
    database: DatabaseFixture, broker: kombu.Connection, tmp_path: Path, kind: str
) -> None:
    flower, jobs = Flower(free_port()), marked(database)
    env = {
        **RATE,
        "FAIRLINE_DATABASE_URL": database.engine.url.render_as_string(hide_password=False),
        "FAIRLINE_BROKER_URL": broker.as_uri(include_password=True),
        "FLOWER_PORT": flower.url.rpartition(":")[2],
        "FLOWER_ADDRESS": "127.0.0.1",
    }
    processes = {
        "flower": (str(BIN / "celery"), "-A", "app", "flower"),
        "worker": (*worker("medium", 2, kind), "-E"),
    }
    with commands(processes, env, tmp_path):
        wait_for_answer(f"{flower.url}/healthcheck", seconds=60)
        wait_for(lambda: bool(flower.worker().get("status")), 60)
        send(broker, jobs)
        wait_for(lambda: flower.worker().get("task-failed", 0) == FAILING, 60)
        wait_for(lambda: flower.worker().get("task-succeeded", 0) == TASKS, 60)
        wait_for(lambda: flower.worker()["processed"] == TASKS + FAILING, 60)
        told = flower.worker()
        assert told["task-received"] == told["task-started"] == TASKS + FAILING
        shown = flower.tasks()
        assert len(shown) < TASKS / 2, "not each of them is shown"
        failed = [task for task in shown if task["state"] == "FAILURE"]
        assert [(task["name"], task["args"] != "") for task in failed] == [("fail", True)] * FAILING
        assert all("PERMANENT: no such role" in task["exception"] for task in failed)
        check_metrics(flower.metrics())


def check_metrics(told: dict[tuple[str, ...], float]) -> None:
    """Flower's own ``/metrics`` have the same sums."""
    events = "flower_events_total"
    assert told[events, "sleep", "task-succeeded"] == TASKS
    assert told[events, "sleep", "task-started"] == told[events, "sleep", "task-received"] == TASKS
    assert told[events, "fail", "task-failed"] == FAILING
    runtime = "flower_task_runtime_seconds"
    assert told[f"{runtime}_count", "sleep", ""] == TASKS
    assert told[f"{runtime}_sum", "sleep", ""] >= 0.001 * TASKS
    assert told["flower_worker_prefetched_tasks", "sleep", ""] == 0
