"""Flower's list of queues, with the jobs that wait in the database beside those of the broker.

The broker holds about two rounds of work per pool, so its queues alone would look almost empty
however long the queue is. Flower reads ``flowerconfig.py`` when it starts, and that calls
:func:`show_waiting_jobs`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import flower.views  # type: ignore[import-untyped]  # no types
from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.broker.queues import job_queue
from app.config import settings
from app.reads.job_counts import count_waiting
from models.pools import POOLS, is_job_queue
from models.store.errors import StateStoreError
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

    def __init__(self, broker: Any) -> None:
        """``broker``: Flower's own client, or None where it has none."""
        self._broker = broker

    async def queues(self, names: Iterable[str]) -> list[Listed]:
        loop = asyncio.get_running_loop()
        waiting = loop.run_in_executor(None, list_waiting)
        known = QueueNames({*names, *POOLS})
        if self._broker is None:
            queues = await loop.run_in_executor(None, list_messages, sorted(known))
        else:
            queues = await self._broker.queues(known)
        return [*sorted(queues, key=lambda queue: str(queue["name"])), *await waiting]


def show_waiting_jobs() -> None:
    """Let Flower's pages and its API list them."""
    flower.views.Broker = watched(flower.views.Broker)


def watched(open_broker: Callable[..., Any]) -> Callable[..., WatchedQueues]:
    """A factory like Flower's, which also takes brokers without an API of their own."""

    def opened(*arguments: Any, **options: Any) -> WatchedQueues:
        try:
            broker = open_broker(*arguments, **options)
        except NotImplementedError:
            return WatchedQueues(None)
        if broker.vhost == "/":
            # Flower 2.2 asks for `queues//`, which RabbitMQ does not know.
            broker.vhost = "%2F"
        return WatchedQueues(broker)

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
    return open_engine(settings(), process="flower")
