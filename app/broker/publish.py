"""Publish: references go to the queue of their pool, many in flight, one wait for all confirms.

A confirm for each publish would cost a round trip each; here a group is written and then
confirmed together. Everything is bounded in time: a broker that is away, blocked by an
alarm or silent is :class:`BrokerUnavailable`, and the caller releases the rows.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Connection, Queue
from kombu.exceptions import KombuError

from app.errors import BrokerUnavailable
from app.policy.window import packs, refs_in_message
from app.telemetry import dispatching
from models.jobs.dispatch import Dispatch
from models.pools import POOLS, UNMEASURED_REFS

NOTHING_KNOWN: Mapping[str, float] = {}


class Publisher:
    """One connection to the broker, opened when needed. Not for concurrent use."""

    def __init__(self, celery: Celery, timeout_seconds: float) -> None:
        self._celery = celery
        self._timeout_seconds = timeout_seconds
        self._connection: Connection | None = None
        self._channel: Any = None
        self._producer: Any = None
        self._confirms = False
        self._sent = 0
        self._unconfirmed: set[int] = set()
        self._refused = False
        #: Queues of slices that this connection has declared.
        self._slices: dict[str, Queue] = {}

    def publish(
        self,
        dispatches: Sequence[Dispatch],
        workers: int = 1,
        lengths: Mapping[str, float] = NOTHING_KNOWN,
    ) -> None:
        """Send the references and wait until the broker has confirmed all of them.

        ``lengths`` are the seconds that jobs take by type, as far as they are known.
        """
        with dispatching(dispatches):
            self._publish(dispatches, workers, lengths)

    def _publish(
        self, dispatches: Sequence[Dispatch], workers: int, lengths: Mapping[str, float]
    ) -> None:
        try:
            self._open()
            for group in by_destination(dispatches):
                pool = POOLS.get(group[0].pool)
                most = pool.refs_per_message if pool else 1
                most = refs_in_message(most, lengths.get(group[0].type), UNMEASURED_REFS)
                for pack in packs(group, most, workers):
                    self._send(pack)
            self._await_confirms()
        except self._errors() as error:
            self.close()
            raise BrokerUnavailable(f"The broker did not take the message: {error}") from error
        if self._refused:
            self._refused = False
            raise BrokerUnavailable("The broker refused a message.")

    def ping(self) -> None:
        """Reach the broker and come back, or raise."""
        try:
            self._open()
            if self._confirms:
                self._channel.queue_declare(queue=next(iter(POOLS)), passive=True)
            else:
                folder = Path(self._celery.conf.broker_transport_options["data_folder_out"])
                if not os.access(folder, os.W_OK):
                    raise OSError(f"{folder} is not writable")
        except self._errors() as error:
            self.close()
            raise BrokerUnavailable(str(error)) from error

    def close(self) -> None:
        """Drop the connection without waiting for a broker that may be gone."""
        connection, self._connection, self._channel = self._connection, None, None
        self._unconfirmed.clear()
        self._slices.clear()
        self._refused = False
        if connection is not None:
            # Whatever state it is in, it is to be forgotten.
            with contextlib.suppress(Exception):
                connection.collect(socket_timeout=0.1)

    def _open(self) -> None:
        if self._connection is not None:
            return
        connection = self._celery.connection_for_write(
            transport_options={
                **self._celery.conf.broker_transport_options,
                "write_timeout": self._timeout_seconds,
            }
        )
        self._connection = connection
        # Each host once: kombu's own connect() sleeps two seconds before its second attempt.
        connection.ensure_connection(max_retries=max(1, len(connection.alt)) - 1)
        if self._celery.conf.broker_url.startswith("amqp"):
            # A frozen broker answers nothing, and py-amqp waits for an answer without end.
            connection.connection.sock.settimeout(self._timeout_seconds)
        self._channel = connection.channel()
        for queue in self._celery.conf.task_queues:
            queue(self._channel).declare()
        self._confirms = hasattr(self._channel, "confirm_select")
        if self._confirms:
            self._channel.confirm_select()
            self._channel.events["basic_ack"].add(self._on_ack)
            self._channel.events["basic_nack"].add(self._on_nack)
        self._sent = 0
        self._producer = self._celery.amqp.Producer(self._channel, auto_declare=False)

    def _send(self, pack: Sequence[Dispatch]) -> None:
        first = pack[0]
        self._celery.send_task(
            first.type,
            args=([[dispatch.id, dispatch.lease] for dispatch in pack],),
            # What Flower shows; Celery's own way of finding it costs a quarter of a publish.
            argsrepr=f"({len(pack)} job{'s' if len(pack) > 1 else ''})",
            kwargsrepr="{}",
            task_id=first.id,
            queue=self._slice_queue(first) if first.slice else first.pool,
            producer=self._producer,
            retry=False,
        )
        if self._confirms:
            self._sent += 1
            self._unconfirmed.add(self._sent)

    def _slice_queue(self, dispatch: Dispatch) -> Queue:
        """The queue of a slice: as its pool's, and not listed anywhere. Made sure of once."""
        queue = self._slices.get(dispatch.queue)
        if queue is None:
            shared = self._celery.amqp.queues[dispatch.pool]
            queue = Queue(
                dispatch.queue,
                shared.exchange,
                routing_key=dispatch.queue,
                durable=True,
                queue_arguments=shared.queue_arguments,
            )
            queue(self._channel).declare()
            self._slices[dispatch.queue] = queue
        return queue

    def _await_confirms(self) -> None:
        deadline = time.monotonic() + self._timeout_seconds
        while self._unconfirmed:
            left = deadline - time.monotonic()
            if left <= 0 or self._connection is None:
                raise TimeoutError("no confirmation in time")
            self._connection.drain_events(timeout=left)

    def _on_ack(self, delivery_tag: int, multiple: bool) -> None:
        if multiple:
            self._unconfirmed = {tag for tag in self._unconfirmed if tag > delivery_tag}
        else:
            self._unconfirmed.discard(delivery_tag)

    def _on_nack(self, delivery_tag: int, multiple: bool) -> None:
        self._refused = True
        self._on_ack(delivery_tag, multiple)

    def _errors(self) -> tuple[type[BaseException], ...]:
        connection = self._connection
        # Also those that will not heal by themselves, such as a queue declared with another type:
        # the scheduler says so and goes on asking. send_task turns what it knows into an
        # OperationalError, which is none of the known ones.
        known = (*connection.connection_errors, *connection.channel_errors) if connection else ()
        return (OSError, KombuError, *known)


def by_destination(dispatches: Sequence[Dispatch]) -> list[list[Dispatch]]:
    """Jobs that may share a message: of one type, for one queue. Others keep their order."""
    groups: dict[tuple[str, ...], list[Dispatch]] = {}
    for dispatch in dispatches:
        pool = POOLS.get(dispatch.pool)
        alone = pool is None or pool.refs_per_message == 1
        key = (dispatch.id,) if alone else (dispatch.type, dispatch.queue)
        groups.setdefault(key, []).append(dispatch)
    return list(groups.values())
