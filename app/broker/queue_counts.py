"""How many messages wait in which queue: a thread asks the broker, and declares what is missing.

A thread with a connection of its own, because each question costs a round trip.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection
from typing import Any

from celery import Celery

from app.broker.connect import try_each_node
from app.broker.node_order import try_last
from app.broker.queues import job_queue, note_refusal

logger = logging.getLogger(__name__)

ANSWER_SECONDS = 2.0
#: Pause after a failure.
RETRY_SECONDS = 1.0


class QueueCounts(threading.Thread):
    """Answers to the last question, each with the time at which it was asked."""

    def __init__(self, celery: Celery) -> None:
        super().__init__(name="queue-counts", daemon=True)
        self._celery = celery
        self._asked = threading.Event()
        self._names: Collection[str] = ()
        self._empty_at: dict[str, float] = {}

    def ask(self, names: Collection[str]) -> None:
        """Ask about these queues, and forget the others."""
        self._empty_at = {name: at for name, at in self._empty_at.items() if name in names}
        self._names = names
        if names:
            if not self.is_alive():
                self.start()
            self._asked.set()

    def empty_at(self, name: str) -> float | None:
        """When the queue was found empty; None if it was not, or the answer is not there yet."""
        return self._empty_at.get(name)

    def run(self) -> None:
        connection: Any = None
        while True:
            self._asked.wait()
            self._asked.clear()
            try:
                connection = connection or self._connect()
                for name in self._names:
                    self._count(connection, name)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                logger.debug("queues cannot be counted: %s", error)
                self._empty_at = {}
                if connection is not None:
                    if not note_refusal(error):
                        try_last(self._celery.conf.broker_url, connection)
                    connection.collect(socket_timeout=0.1)
                connection = None
                time.sleep(RETRY_SECONDS)

    def _connect(self) -> Any:
        connection = self._celery.connection_for_read()
        try_each_node(connection)
        connection.connection.sock.settimeout(ANSWER_SECONDS)
        return connection

    def _count(self, connection: Any, name: str) -> None:
        begun = time.monotonic()
        declared = job_queue(name)(connection.default_channel).queue_declare()
        empty_at = {**self._empty_at, name: begun}
        if declared.message_count:
            del empty_at[name]
        self._empty_at = empty_at
