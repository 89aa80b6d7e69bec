"""What Flower shows beyond what it knows itself: jobs that wait in the database, and task sums.

The broker holds about two rounds of work per pool, so its queues alone would look almost empty
however long the queue is. Of tasks beyond a rate Flower is sent sums with the workers' heartbeats
(:mod:`app.broker.events`), which count as if every event had been sent. Flower reads
``flowerconfig.py`` when it starts, and that calls the functions here.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import flower.events  # type: ignore[import-untyped]  # no types
import flower.views  # type: ignore[import-untyped]  # no types
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.broker.events import SUMS
from app.broker.queues import job_queue
from app.broker_url import node_urls
from app.config import settings
from app.policy.task_events import Fields
from app.reads.job_counts import count_waiting
from models.pools import POOLS, is_job_queue
from models.store.errors import StateStoreError
from models.store.roles import DatabaseRole
from models.store.session import connect, open_engine

logger = logging.getLogger(__name__)

#: A row of the page, by the names that RabbitMQ's management API has for its columns.
Listed = dict[str, Any]


class QueueNames(set[str]):
    """The queues that Flower knows, and every queue of jobs.

    Flower asks workers for their queues when it starts, and not those that start later.
    """

    def __contains__(self, name: object) -> bool:
        return is_job_queue(str(name)) or super().__contains__(name)


class WatchedQueues:
    """What Flower asks a broker for: its queues, and below them the waiting jobs of each pool."""

    def __init__(self, *brokers: Any) -> None:
        """``brokers``: Flower's own clients, one for each node, or none where it has none."""
        self._brokers = brokers

    async def queues(self, names: Iterable[str]) -> list[Listed]:
        loop = asyncio.get_running_loop()
        waiting = loop.run_in_executor(None, list_waiting)
        known = QueueNames({*names, *POOLS})
        queues: list[Listed] = []
        if not self._brokers:
            queues = await loop.run_in_executor(None, list_messages, sorted(known))
        for broker in self._brokers:
            if queues := await broker.queues(known):  # nothing: the node does not answer
                break
        return [*sorted(queues, key=lambda queue: str(queue["name"])), *await waiting]


def show_waiting_jobs() -> None:
    """Let Flower's pages and its API list them."""
    flower.views.Broker = watched(flower.views.Broker)


class SummedState(flower.events.EventsState):  # type: ignore[misc]  # no types
    """What Flower knows from events, and from sums of those that were not sent."""

    def event(self, event: Fields) -> None:
        sums: dict[str, Fields] = event.pop(SUMS, None) or {}
        super().event(event)
        for name, counted in sums.items():
            self._add(event["hostname"], name, counted)

    def _add(self, worker: str, name: str, counted: Fields) -> None:
        """Count for the page of workers and for ``/metrics``."""
        for kind, times in counted["events"].items():
            self.counter[worker][kind] += times
            self.metrics.events.labels(worker, kind, name).inc(times)
        self.metrics.number_of_prefetched_tasks.labels(worker, name).inc(counted["prefetched"])
        runtime = self.metrics.runtime.labels(worker, name)
        for seconds in counted["runtimes"]:
            runtime.observe(seconds)


def count_summed_tasks() -> None:
    """Let Flower count the tasks that it is not shown."""
    flower.events.EventsState = SummedState


def watched(open_broker: Callable[..., Any]) -> Callable[..., WatchedQueues]:
    """A factory like Flower's, which also takes brokers without an API of their own."""

    def opened(url: str, http_api: str | None = None, **options: Any) -> WatchedQueues:
        """``http_api`` may name the API of several nodes, separated by commas."""
        amqp = settings().amqp
        nodes = node_urls(settings().broker_url) if amqp and not http_api else [url]
        try:
            brokers = [
                open_broker(node, http_api=api, **options)
                for node in nodes
                for api in (http_api.split(",") if http_api else [None])
            ]
        except NotImplementedError:
            return WatchedQueues()
        for broker in brokers:
            if broker.vhost == "/":
                # Flower 2.2 asks for `queues//`, which RabbitMQ does not know.
                broker.vhost = "%2F"
        return WatchedQueues(*brokers)

    return opened


def list_waiting() -> list[Listed]:
    """The waiting jobs of each pool; without a number while the database is away."""
    counts: dict[str, int] = {}
    try:
        with connect(database()) as connection:
            counts = count_waiting(connection)
    except (StateStoreError, SQLAlchemyError) as error:
        logger.warning("the waiting jobs cannot be counted: %s", error)
        return [row(pool, None) for pool in POOLS]
    return [row(pool, counts.get(pool, 0)) for pool in POOLS]


def row(pool: str, jobs: int | None) -> Listed:
    """One pool's waiting jobs, as a queue."""
    return {"name": f"{pool}: waiting in PostgreSQL", "messages": jobs, "messages_ready": jobs}


def list_messages(names: Iterable[str]) -> list[Listed]:
    """The queues of a broker that can only be counted, such as a folder."""
    from app.celery import celery

    with celery.connection_for_read() as connection:
        counted = [job_queue(name)(connection.default_channel).queue_declare() for name in names]
    return [
        {"name": each.queue, "messages": each.message_count, "messages_ready": each.message_count}
        for each in counted
    ]


@cache
def database() -> Engine:
    """The database of this process."""
    return open_engine(settings(), process="flower", role=DatabaseRole.API)
