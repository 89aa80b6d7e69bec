"""A task cannot be revoked: its job would be neither cancelled nor run."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import kombu
import pytest
from celery import Celery

from app.broker.control import REFUSED_COMMANDS
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from tests.support.commands import commands, worker
from tests.support.database_fixture import DatabaseFixture
from tests.support.waiting import wait_for

Command = Callable[[Celery, str], Any]
#: As people type them, and as Flower sends them.
COMMANDS: dict[str, Command] = {
    "revoke": lambda celery, task: celery.control.revoke(task, reply=True, timeout=5, limit=1),
    "terminate": lambda celery, task: celery.control.terminate(
        task, reply=True, timeout=5, limit=1
    ),
    "time_limit": lambda celery, task: celery.control.time_limit(
        "sleep", soft=1, hard=1, reply=True, timeout=5, limit=1
    ),
    # Celery's own method expects no refusal.
    "revoke_by_stamped_headers": lambda celery, task: celery.control.broadcast(
        "revoke_by_stamped_headers",
        arguments={"headers": {"task": task}, "terminate": True},
        reply=True,
        timeout=5,
        limit=1,
    ),
}


@pytest.mark.long
@pytest.mark.parametrize("kind", ["gevent", "prefork"])
def test_jobs_whose_tasks_are_revoked_run(
    database: DatabaseFixture, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path, kind: str
) -> None:
    assert set(COMMANDS) == set(REFUSED_COMMANDS)
    url = rabbitmq.service.url()
    env = {
        "FAIRLINE_DATABASE_URL": database.engine.url.render_as_string(hide_password=False),
        "FAIRLINE_BROKER_URL": url,
    }
    celery = Celery("test", broker=url)
    queue = kombu.Queue("medium", no_declare=True)  # the worker has
    with (
        kombu.Connection(url) as broker,
        commands({"worker": worker("medium", 1, kind)}, env, tmp_path),
    ):
        wait_for(lambda: bool(celery.control.ping(timeout=1)), 60)
        for _ in range(2):
            database.submit(type="sleep", payload='{"seconds": 3}')
        running, waiting = database.dispatch("medium")

        def send(number: int) -> None:
            job = (running, waiting)[number]
            celery.send_task(
                job.type,
                args=([[job.id, job.lease]],),
                task_id=job.id,
                queue=queue,
                connection=broker,
            )

        send(0)
        wait_for(lambda: database.job(running.id).status == "running", 30)
        for job in (running, waiting):
            for command in COMMANDS.values():
                [answer] = command(celery, job.id)
                [said] = answer.values()
                assert "DELETE /jobs/{id}" in said["error"]
        send(1)
        for job in (running, waiting):
            wait_for(lambda id=job.id: database.job(id).status == "succeeded", 30)
        assert {database.job(job.id).lease for job in (running, waiting)} == {1}
