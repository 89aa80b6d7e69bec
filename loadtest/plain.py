"""The baseline's processes: the same number, the same servers, its own database and queue."""

from __future__ import annotations

import uuid

from celery import Celery
from kombu import Exchange, Queue
from sqlalchemy import Engine, create_engine, insert

from app.stack.programs import command
from loadtest.baselines.plain_celery import store
from loadtest.fairline import free_port
from loadtest.fleet import Fleet

PACKAGE = "loadtest.baselines.plain_celery"
SLOTS = 10
#: As in the baseline's own module, which needs its environment to be imported.
QUEUE = "plain"
TASK = "plain.score"


class PlainCelery:
    """One baseline on the fleet's services."""

    def __init__(self, fleet: Fleet) -> None:
        self.fleet = fleet
        self.port = free_port()
        fleet.postgres.service.create_database("plain")
        self.env = {
            "PLAIN_DATABASE_URL": fleet.postgres.service.url("plain"),
            "PLAIN_BROKER_URL": fleet.rabbitmq.service.url(),
        }
        engine = self.engine()
        store.metadata.create_all(engine)
        engine.dispose()

    def start_web(self) -> None:
        """Two gunicorn workers, answering."""
        self.fleet.start(
            "plain-web",
            command(
                *("gunicorn", "-c", "loadtest/baselines/plain_celery/gunicorn.conf.py"),
                *("--bind", f"127.0.0.1:{self.port}"),
                f"{PACKAGE}.web:create_app()",
            ),
            self.env,
        )
        self.fleet.await_answer("plain-web", f"http://127.0.0.1:{self.port}/empty")

    def start_worker(self) -> None:
        """One gevent worker."""
        self.fleet.start(
            "plain-worker",
            command(
                *("celery", "-A", f"{PACKAGE}.tasks", "worker"),
                *("-P", "gevent", "-c", str(SLOTS)),
                *("-n", "plain@%h", "--without-gossip", "--without-mingle"),
                "--loglevel=warning",
            ),
            self.env,
        )

    def queue_tasks(self, count: int, role: str) -> None:
        """Rows, and a task for each in the broker, before any worker runs."""
        ids = [uuid.uuid4() for _ in range(count)]
        engine = self.engine()
        with engine.begin() as connection:
            connection.execute(
                insert(store.applications),
                [{"id": i, "candidate": "x", "role": role, "payload": {}} for i in ids],
            )
        engine.dispose()
        with (
            Celery(broker=self.env["PLAIN_BROKER_URL"]) as celery,
            celery.pool.acquire() as taken,
        ):
            queue = Queue(QUEUE, Exchange(QUEUE), routing_key=QUEUE)
            queue(taken.default_channel).declare()
            producer = celery.amqp.Producer(taken, auto_declare=False)
            for application_id in ids:
                celery.send_task(TASK, args=(str(application_id),), queue=queue, producer=producer)

    def empty_queue(self) -> None:
        """Drop the tasks that submissions left in the broker."""
        with (
            Celery(broker=self.env["PLAIN_BROKER_URL"]) as celery,
            celery.pool.acquire() as taken,
        ):
            taken.default_channel.queue_purge(QUEUE)

    def engine(self) -> Engine:
        """A way to the rows."""
        return create_engine(self.env["PLAIN_DATABASE_URL"])
