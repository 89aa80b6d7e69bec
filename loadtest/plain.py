"""The processes of the plain Celery baseline: as many as Fairline's, its own database and queue."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cached_property
from typing import Any

from celery import Celery
from kombu import Exchange, Queue
from sqlalchemy import Engine, create_engine, insert

from app.stack.ports import free_port
from app.stack.programs import command
from loadtest.baselines.plain_celery import store
from loadtest.fleet import Fleet, celery_worker, until

PACKAGE = "loadtest.baselines.plain_celery"
SLOTS = 10
#: As in the baseline's own module, which needs its environment to be imported.
TASK = "plain.score"


def serve(fleet: Fleet, name: str, port: int, application: str, env: dict[str, str]) -> None:
    """Start a WSGI application of a baseline with two gunicorn workers, answering."""
    config, bind = "loadtest/baselines/plain_celery/gunicorn.conf.py", f"127.0.0.1:{port}"
    fleet.start(name, command("gunicorn", "-c", config, "--bind", bind, application), env)
    fleet.await_answer(name, f"http://{bind}/empty")


class PlainCelery:
    """One baseline on the fleet's services."""

    def __init__(self, fleet: Fleet, *, name: str = "plain", **settings: str) -> None:
        """``name`` is its database and queue; ``settings`` are variables without their prefix."""
        self.fleet = fleet
        self.name = name
        self.port = free_port()
        fleet.postgres.service.create_database(name)
        self.env = {
            "PLAIN_DATABASE_URL": fleet.postgres.service.url(name),
            "PLAIN_BROKER_URL": fleet.rabbitmq.service.url(),
            "PLAIN_QUEUE": name,
            **prefixed(settings),
        }
        store.metadata.create_all(self.engine)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def start_web(self) -> None:
        """Two gunicorn workers, answering."""
        serve(self.fleet, "plain-web", self.port, f"{PACKAGE}.web:create_app()", self.env)

    def start_worker(self, number: int = 1, **settings: str) -> str:
        """One gevent worker, with more settings; its name."""
        name = "plain-worker" if number == 1 else f"plain-worker-{number}"
        words = celery_worker(f"{PACKAGE}.tasks", "gevent", SLOTS, f"{self.name}{number}")
        self.fleet.start(name, command(*words), {**self.env, **prefixed(settings)})
        return name

    def await_workers(self, count: int, seconds: float = 30.0) -> None:
        until(lambda: self._consumers() >= count, seconds, f"{count} workers of {self.name}")

    @contextmanager
    def _connection(self) -> Iterator[tuple[Celery, Any]]:
        """A client of the broker, and its connection."""
        broker = self.env["PLAIN_BROKER_URL"]
        with Celery(broker=broker) as celery, celery.pool.acquire() as connection:
            yield celery, connection

    def _consumers(self) -> int:
        with self._connection() as (_, connection):
            try:
                answer = connection.default_channel.queue_declare(self.name, passive=True)
            except connection.channel_errors:
                return 0  # the first worker declares it
        return int(answer.consumer_count)

    def queue_tasks(self, count: int, role: str) -> None:
        """Rows, and a task for each in the broker, before any worker runs."""
        ids = [uuid.uuid4() for _ in range(count)]
        with self.engine.begin() as connection:
            connection.execute(
                insert(store.applications),
                [{"id": i, "candidate": "x", "role": role, "payload": {}} for i in ids],
            )
        with self._connection() as (celery, connection):
            queue = Queue(self.name, Exchange(self.name), routing_key=self.name)
            queue(connection.default_channel).declare()
            producer = celery.amqp.Producer(connection, auto_declare=False)
            for application_id in ids:
                celery.send_task(TASK, args=(str(application_id),), queue=queue, producer=producer)

    def empty_queue(self) -> None:
        """Delete the tasks that submissions left in the broker."""
        with self._connection() as (_, connection):
            connection.default_channel.queue_purge(self.name)

    def remove_queue(self) -> None:
        """Delete the queue with its tasks; workers declare it again."""
        with self._connection() as (_, connection):
            connection.default_channel.queue_delete(self.name)

    def remove(self) -> None:
        """Delete its queue and its database. Stop its processes first."""
        self.remove_queue()
        self.engine.dispose()
        self.fleet.postgres.service.drop_database(self.name)

    @cached_property
    def engine(self) -> Engine:
        return create_engine(self.env["PLAIN_DATABASE_URL"])


def prefixed(settings: dict[str, str]) -> dict[str, str]:
    return {f"PLAIN_{key.upper()}": value for key, value in settings.items()}
