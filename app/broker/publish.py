"""Publisher: sends job references to the queue of their pool and waits once for all confirms.

A confirm per message would cost a round trip each. Everything is bounded in time: for a broker that
is unreachable, blocked by an alarm or silent, :class:`BrokerUnavailable` is raised and the caller
releases the jobs.
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

from app.broker.queues import job_queue
from app.errors import BrokerUnavailable
from app.policy.window import packs, refs_in_message
from app.telemetry.hooks import dispatching
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
            try:
                self._open()
                for group in by_destination(dispatches):
                    seconds = lengths.get(group[0].type)
                    most = refs_in_message(most_refs(group[0]), seconds, UNMEASURED_REFS)
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
        """Raise :class:`BrokerUnavailable` unless the broker answers."""
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
            # Shown by Flower; Celery's own repr of the arguments costs a quarter of a publish.
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
        """The queue of a slice, like its pool's; declared once per connection."""
        if dispatch.queue not in self._slices:
            queue = self._slices[dispatch.queue] = job_queue(dispatch.queue)
            queue(self._channel).declare()
        return self._slices[dispatch.queue]

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
        # Also permanent ones, such as a queue declared with another type: the scheduler logs them
        # and retries. send_task turns known ones into an OperationalError, which is a KombuError.
        known = (*connection.connection_errors, *connection.channel_errors) if connection else ()
        return (OSError, KombuError, *known)


def by_destination(dispatches: Sequence[Dispatch]) -> list[list[Dispatch]]:
    """Jobs that may share a message: of one type, for one queue. Others keep their order."""
    groups: dict[tuple[str, ...], list[Dispatch]] = {}
    for dispatch in dispatches:
        alone = most_refs(dispatch) == 1
        key = (dispatch.id,) if alone else (dispatch.type, dispatch.queue)
        groups.setdefault(key, []).append(dispatch)
    return list(groups.values())


def most_refs(dispatch: Dispatch) -> int:
    """References of its pool that may share a message."""
    pool = POOLS.get(dispatch.pool)
    return pool.refs_per_message if pool else 1
