"""A worker's consumer of messages: Celery's, which notices a broker that no longer answers.

Celery's own heartbeats would be for all connections of a worker or for none: see ``celeryconfig``.
"""

from __future__ import annotations

import itertools
import logging
import random
import time
from typing import Any

from celery.bootsteps import RUN
from celery.worker.consumer import Consumer
from celery.worker.state import maybe_shutdown

from app.broker.control import refuse_commands
from app.broker.node_order import try_last
from app.broker.queues import note_refusal, queue_arguments, queues_with_other_arguments

logger = logging.getLogger(__name__)

#: A broker that sends nothing for two of these is given up. So is a worker by the broker, which a
#: job may cause that does not let others run; its messages are redelivered, and the rows decide.
HEARTBEAT_SECONDS = 5
#: How long the worker waits for an answer on its other connections, as when it opens one.
ANSWER_SECONDS = 2.0
#: Between two rounds of attempts to connect, which grows from the first to the longest; they are
#: reported once in so many.
FIRST_PAUSE_SECONDS, MOST_PAUSE_SECONDS = 0.1, 1.0
TELL_ROUNDS = 60
QUORUM = {"x-queue-type": "quorum"}


class JobConsumer(Consumer):  # type: ignore[misc]  # Celery has no types
    """Named by ``celeryconfig``."""

    class Blueprint(Consumer.Blueprint):  # type: ignore[misc]  # as above
        """Without delayed delivery: delays are in the row, and Celery would declare 28 queues."""

        default_steps = tuple(
            step for step in Consumer.Blueprint.default_steps if "DelayedDelivery" not in step
        )

    def __init__(self, *args: Any, **given: Any) -> None:
        refuse_commands()
        super().__init__(*args, **given)

    def connect(self) -> Any:
        """Heartbeats on this connection, and on no other one."""
        self.amqheartbeat = HEARTBEAT_SECONDS
        try:
            return super().connect()
        finally:
            self.amqheartbeat = 0

    def ensure_connected(self, conn: Any) -> Any:
        """Try all nodes in rounds with a pause of at most a second; Celery's own is half a minute.

        A node that does not answer takes its connect timeout in each round. One that refuses us is
        passed over as well: kombu would not try the others, and one that was wiped does not know
        our user yet. A connection without heartbeats must not wait for an answer without end, not
        even when it is closed.
        """
        rounds = itertools.count()
        nodes = max(1, len(conn.alt))

        def tell(error: BaseException, interval: float) -> None:
            if next(rounds) % (TELL_ROUNDS * nodes) < nodes:
                # At the start of a stack the broker is not there yet.
                level = logging.WARNING if self.first_connection_attempt else logging.ERROR
                logger.log(level, "cannot connect to %s: %s", conn.as_uri(), error)

        pause = random.uniform(0.5, MOST_PAUSE_SECONDS)
        while True:
            try:
                connected = conn.ensure_connection(
                    tell,
                    interval_start=FIRST_PAUSE_SECONDS,
                    interval_step=FIRST_PAUSE_SECONDS,
                    interval_max=pause,
                    callback=maybe_shutdown,
                )
                break
            except (*conn.connection_errors, *conn.channel_errors) as refused:
                tell(refused, pause)
                try_last(self.app.conf.broker_url, conn)
                conn.maybe_switch_next()
                maybe_shutdown()
                time.sleep(pause)
        self.first_connection_attempt = False
        sock = getattr(connected.connection, "sock", None)
        if sock is not None and not connected.heartbeat:
            sock.settimeout(ANSWER_SECONDS)
        return connected

    def perform_pending_operations(self) -> None:
        """Called before each wait for messages: notices a connection that a write found lost.

        Say an acknowledgement, after the process stood still and the broker gave it up. kombu
        opens another one then, on which nothing is consumed: the worker would get no message.
        Celery also calls it while the worker stops, with or without a connection: an error here
        would skip the rest of the shutdown.
        """
        super().perform_pending_operations()
        if self.blueprint.state != RUN:
            return
        connection = self.task_consumer.channel.connection
        if connection is None or not getattr(connection, "connected", True):
            raise ConnectionResetError("the connection to the broker was lost")

    def on_connection_error_after_connected(self, exc: BaseException) -> None:
        if not note_refusal(exc):
            try_last(self.app.conf.broker_url, self.connection)
        for name, queue in self.app.amqp.queues.items():
            # Celery judges by this whether it may ask for a global prefetch, which a quorum queue
            # refuses and no queue needs.
            queue.queue_arguments = (
                QUORUM if name in queues_with_other_arguments else queue_arguments()
            )
        super().on_connection_error_after_connected(exc)
