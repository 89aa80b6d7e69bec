"""Opening a connection for a publisher, in a thread: a slow broker must not stop its caller.

A connection is open once the broker has confirmed a message on it. One that accepts connections but
takes no messages, as RabbitMQ does while it is short of disk space or memory, is not.
"""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from concurrent.futures import Future
from typing import Any

from celery import Celery
from kombu import Connection
from kombu.exceptions import KombuError

from app.broker.node_order import try_last
from app.broker.queues import note_refusal
from app.policy.confirms import MOST_OPENING_SECONDS, opening_seconds

logger = logging.getLogger(__name__)

#: No queue has this name: the broker confirms a probe and drops it.
PROBE = "fairline.probe"
#: How long a broker that has answered may take for each further step, such as the first confirm.
FIRST_CONFIRM_SECONDS = MOST_OPENING_SECONDS


class BrokerConnection:
    """An open connection with one channel."""

    def __init__(self, celery: Celery, timeout_seconds: float, latency: float = 0.0) -> None:
        """``latency``: of the confirms on the connection before."""
        self._urls = celery.conf.broker_url
        first = self._urls if isinstance(self._urls, str) else self._urls[0]
        amqp = first.startswith("amqp")
        options = {**celery.conf.broker_transport_options, "write_timeout": timeout_seconds}
        if amqp:
            # Also for each answer while the connection is opened.
            options["connect_timeout"] = opening_seconds(options["connect_timeout"], latency)
        self.connection: Connection = celery.connection_for_write(transport_options=options)
        try:
            try_each_node(self.connection)
            if amqp:
                # A frozen broker answers nothing, and py-amqp waits for an answer without end.
                self.connection.connection.sock.settimeout(FIRST_CONFIRM_SECONDS)
            self.channel: Any = self.connection.channel()
            for queue in celery.conf.task_queues:
                # An error comes with the first confirm.
                queue(self.channel).queue_declare(nowait=amqp)
            self.latency = self._first_confirm() if amqp else 0.0
            if amqp:
                self.connection.connection.sock.settimeout(timeout_seconds)
        except BaseException as error:
            self.note_failure(error)
            self.close()
            raise
        self.confirms = amqp
        self.producer: Any = celery.amqp.Producer(self.channel, auto_declare=False)

    def probe(self) -> None:
        """Publish a message that is confirmed and goes nowhere."""
        self.channel.basic_publish(self.channel.prepare_message(b""), "", PROBE)

    def note_failure(self, error: BaseException) -> None:
        """After this error: what the next connection, of whomever, should do otherwise."""
        if not note_refusal(error):
            try_last(self._urls, self.connection)

    def close(self) -> None:
        """Drop the connection without waiting for a broker that may be gone."""
        with contextlib.suppress(Exception):
            self.connection.collect(socket_timeout=0.1)

    def errors(self) -> tuple[type[BaseException], ...]:
        """What an operation may raise because of the broker.

        Also permanent ones, such as a queue declared with another type: callers log them and
        retry.
        """
        known = (*self.connection.connection_errors, *self.connection.channel_errors)
        return (OSError, KombuError, *known)

    def _first_confirm(self) -> float:
        """Publish a probe and wait until it is confirmed; how long that took."""
        confirmed: list[object] = []
        self.channel.confirm_select()
        self.channel.events["basic_ack"].add(lambda *_: confirmed.append(None))
        begun = time.monotonic()
        self.probe()
        while not confirmed:
            left = begun + FIRST_CONFIRM_SECONDS - time.monotonic()
            self.connection.drain_events(timeout=max(0.0, left))
        self.channel.events["basic_ack"].clear()
        return time.monotonic() - begun


def try_each_node(connection: Connection) -> None:
    """Each once: kombu's own connect() sleeps two seconds before its second attempt."""
    connection.ensure_connection(max_retries=max(1, len(connection.alt)) - 1)


def open_in_thread(
    celery: Celery, timeout_seconds: float, latency: float = 0.0
) -> Future[BrokerConnection]:
    """One attempt to open a connection."""
    opening: Future[BrokerConnection] = Future()

    def attempt() -> None:
        try:
            opening.set_result(BrokerConnection(celery, timeout_seconds, latency))
        except Exception as error:  # noqa: BLE001 - the caller reports it
            opening.set_exception(error)

    threading.Thread(target=attempt, name="broker-connection", daemon=True).start()
    return opening


def close_when_open(opening: Future[BrokerConnection]) -> None:
    """For an attempt that nobody waits for any more."""

    def close(ended: Future[BrokerConnection]) -> None:
        if ended.exception() is None:
            ended.result().close()

    opening.add_done_callback(close)
