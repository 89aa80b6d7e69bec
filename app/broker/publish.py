"""Publisher: sends job references to the queue of their pool, and reads the broker's confirms.

A confirm per message would cost a round trip each, so the confirms of a group are awaited together,
and not at all while they are slow (:mod:`app.policy.confirms`). Everything is bounded in time.

What becomes of a message:

* confirmed: it is at the broker.
* not confirmed yet: unknown. Its jobs stay dispatched; the message is probably there.
* refused, or unconfirmed on a connection that was lost or is silent: not delivered. The caller
  releases its jobs: see ``undelivered``. One that arrives all the same does no harm: its lease
  number no longer matches.
* returned, as its queue was deleted: not delivered either, and the queue is declared again.

Whether a silent broker is gone or late shows only later, so a silent connection is kept, for a
minute at most, while another one is opened: the first of them to confirm something is used.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Queue
from sqlalchemy import Engine

from app.broker.connect import BrokerConnection, close_when_open, open_in_thread
from app.broker.messages import handed_over, in_messages
from app.broker.queues import job_queue
from app.errors import BrokerUnavailable
from app.policy.confirms import MOST_SILENT_SECONDS, expected_latency, patience, silence
from app.telemetry.hooks import dispatching
from models.jobs.dispatch import Dispatch
from models.jobs.release import release
from models.jobs.trace_context import trace_headers
from models.tallies import Tallies

logger = logging.getLogger(__name__)

NOTHING_KNOWN: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message whose confirm is awaited; without references, a probe."""

    sent_at: float
    refs: Sequence[Dispatch] = ()


class SilentBroker(TimeoutError):
    """Nothing was confirmed for too long."""


class Publisher:
    """One connection to the broker, opened when needed. Not for concurrent use."""

    #: Where jobs that were handed over are counted, if they are; whoever has it writes it.
    tallies: Tallies | None = None

    def __init__(
        self, celery: Celery, timeout_seconds: float, tallies: Tallies | None = None
    ) -> None:
        self._celery = celery
        self._timeout_seconds = timeout_seconds
        self.tallies = tallies
        self._opening: Future[BrokerConnection] | None = None
        self._broker: BrokerConnection | None = None
        self._tag = 0
        #: By delivery tag, so in the order of sending.
        self._unconfirmed: dict[int, SentMessage] = {}
        self._undelivered: list[Dispatch] = []
        self._latency = 0.0
        #: The same of what was confirmed, without what is awaited.
        self._measured = 0.0
        #: When something was confirmed last, and when the latest of that was sent.
        self._confirmed_at = self._confirmed_sent_at = 0.0
        self._slow = False
        #: When confirms were read last; and at this reading, how long before it that was.
        self._read_at = 0.0
        self._unread_seconds = 0.0
        #: Queues of slices that this connection has declared.
        self._slices: dict[str, Queue] = {}

    def publish(
        self,
        dispatches: Sequence[Dispatch],
        workers: int = 1,
        lengths: Mapping[str, float] = NOTHING_KNOWN,
        slots: int = 0,
    ) -> bool:
        """Send the references; whether the broker has answered for everything sent so far.

        :class:`BrokerUnavailable` means that these dispatches are not delivered.
        ``lengths`` are the seconds that jobs take by type, as far as they are known, and ``slots``
        those of each of the ``workers``; 0: as many as their pool usually has.
        """
        with dispatching(dispatches):
            broker = self._open()
            try:
                for pack in in_messages(dispatches, workers, lengths, slots):
                    self._send(broker, pack)
                self._read_confirms(broker, patience(self._latency, self._timeout_seconds))
            except broker.errors() as error:
                self._give_up(error)
                raise BrokerUnavailable(f"The broker did not take the message: {error}") from error
            if self.tallies is not None:
                self.tallies.add_all(handed_over(dispatches))
            return not self._unconfirmed

    def ping(self) -> None:
        """Raise :class:`BrokerUnavailable` unless the broker takes messages, late or not."""
        broker = self._open()
        try:
            if broker.confirms:
                self._probe(broker)
            else:
                folder = Path(self._celery.conf.broker_transport_options["data_folder_out"])
                if not os.access(folder, os.W_OK):
                    raise OSError(f"{folder} is not writable")
        except broker.errors() as error:
            self._give_up(error)
            raise BrokerUnavailable(str(error)) from error

    def undelivered(self) -> list[Dispatch]:
        """Dispatches of earlier calls that turned out not to be delivered, each of them once."""
        broker = self._broker
        if broker is not None and self._unconfirmed:
            try:
                self._read_confirms(broker, 0.0)
            except broker.errors() as error:
                self._give_up(error)
        found, self._undelivered = self._undelivered, []
        return found

    def close(self) -> None:
        """Drop the connection; what is not confirmed counts as not delivered."""
        broker, self._broker = self._broker, None
        self._drop_opening()
        for sent in self._unconfirmed.values():
            self._undelivered.extend(sent.refs)
        self._unconfirmed.clear()
        self._slices.clear()
        if broker is not None:
            broker.close()

    def _drop_opening(self) -> None:
        opening, self._opening = self._opening, None
        if opening is not None:
            close_when_open(opening)

    def _give_up(self, error: BaseException) -> None:
        """What was sent counts as not delivered; a connection that is merely silent is kept."""
        if self._broker is not None:
            self._broker.note_failure(error)
        if not isinstance(error, SilentBroker):
            logger.warning("the connection to the broker is lost: %s", error)
            self.close()
        for tag, sent in self._unconfirmed.items():
            self._undelivered.extend(sent.refs)
            self._unconfirmed[tag] = SentMessage(sent.sent_at)

    def _open(self) -> BrokerConnection:
        """A connection that is not silent; one being opened is waited for only at first."""
        if self._broker is not None:
            try:
                self._read_confirms(self._broker, 0.0)
            except self._broker.errors() as failure:
                self._give_up(failure)
            else:
                self._drop_opening()
                return self._broker
        seconds = 0.0 if self._opening else self._timeout_seconds
        opening = self._opening or open_in_thread(
            self._celery, self._timeout_seconds, self._measured
        )
        self._opening = opening
        wait([opening], seconds)
        if not opening.done():
            raise BrokerUnavailable("No connection to the broker: it is slow")
        self._opening = None
        if error := opening.exception():
            raise BrokerUnavailable(f"No connection to the broker: {error}") from error
        self.close()  # the silent one
        broker = self._broker = opening.result()
        self._tag, self._latency, self._read_at = 1, broker.latency, time.monotonic()
        self._measured = broker.latency
        if broker.confirms:
            broker.channel.events["basic_ack"].add(self._on_ack)
            broker.channel.events["basic_nack"].add(self._on_nack)
            broker.channel.events["basic_return"].add(self._on_return)
        return broker

    def _send(self, broker: BrokerConnection, pack: Sequence[Dispatch]) -> None:
        first = pack[0]
        if broker.confirms:
            # Before it is sent: the write itself may read a confirm.
            self._tag += 1
            self._unconfirmed[self._tag] = SentMessage(time.monotonic(), pack)
        # The two halves of Celery's send_task(): what it does beside them, for results, routes and
        # chains, takes more than half of its time.
        amqp = self._celery.amqp
        message = amqp.create_task_message(
            first.id,
            first.type,
            args=([[dispatch.id, dispatch.lease] for dispatch in pack],),
            # Shown by Flower; Celery's own repr of the arguments costs a quarter of a publish.
            argsrepr=f"({len(pack)} job{'s' if len(pack) > 1 else ''})",
            kwargsrepr="{}",
            ignore_result=True,
        )
        amqp.send_task_message(
            broker.producer,
            first.type,
            message,
            # The span of a message belongs to the trace of its first job.
            headers=trace_headers(first.traceparent),
            queue=self._slice_queue(broker, first) if first.slice else first.pool,
            # All are declared already; Celery would wait for an answer.
            declare=(),
            mandatory=True,
            retry=False,
        )

    def _slice_queue(self, broker: BrokerConnection, dispatch: Dispatch) -> Queue:
        """The queue of a slice, like its pool's; declared once per connection."""
        if dispatch.queue not in self._slices:
            queue = self._slices[dispatch.queue] = job_queue(dispatch.queue)
            queue(broker.channel).queue_declare(nowait=broker.confirms)
        return self._slices[dispatch.queue]

    def _probe(self, broker: BrokerConnection) -> None:
        if all(sent.refs for sent in self._unconfirmed.values()):
            self._tag += 1
            self._unconfirmed[self._tag] = SentMessage(time.monotonic())
            broker.probe()
        self._read_confirms(broker, patience(self._latency, self._timeout_seconds))

    def _read_confirms(self, broker: BrokerConnection, seconds: float) -> None:
        """Read until everything is confirmed, for so long at most; raises if it was silent."""
        begun = time.monotonic()
        self._unread_seconds = begun - self._read_at
        while self._unconfirmed:
            try:
                left = max(0.0, begun + seconds - time.monotonic())
                broker.connection.drain_events(timeout=left)
            except TimeoutError:
                break
        self._read_at = time.monotonic()
        oldest = self._oldest_seconds()
        self._judge(oldest)
        self._latency = max(self._latency, oldest)
        slow = self._latency > self._timeout_seconds
        if slow != self._slow:
            logger.warning("the broker confirms %s", "late" if slow else "in time again")
        self._slow = slow

    def _judge(self, oldest: float) -> None:
        """Raise if nothing was confirmed for too long, though ``oldest`` is as old."""
        limit, now = silence(self._timeout_seconds, self._measured), self._read_at
        silent = min(oldest, now - self._confirmed_at)
        if oldest > max(limit, MOST_SILENT_SECONDS):
            raise TimeoutError(f"a message was not confirmed for {oldest:.0f} s")
        if silent > limit:
            raise SilentBroker(f"nothing was confirmed for {silent:.0f} s")
        if self._confirmed_sent_at - (now - oldest) > limit:
            raise TimeoutError(f"only later messages were confirmed for {oldest:.0f} s")

    def _oldest_seconds(self) -> float:
        """How long the oldest message has not been confirmed."""
        oldest = next(iter(self._unconfirmed.values()), None)
        return time.monotonic() - oldest.sent_at if oldest else 0.0

    def _on_ack(self, delivery_tag: int, multiple: bool) -> None:
        for sent in self._take(delivery_tag, multiple):
            # What was sent before the last reading may have been confirmed at any time since.
            seconds = max(0.0, self._confirmed_at - sent.sent_at - self._unread_seconds)
            self._latency = expected_latency(self._latency, seconds)
            self._measured = expected_latency(self._measured, seconds)

    def _on_nack(self, delivery_tag: int, multiple: bool) -> None:
        for sent in self._take(delivery_tag, multiple):
            self._undelivered.extend(sent.refs)

    def _on_return(self, error: Any, exchange: str, routing_key: str, message: Any) -> None:
        """Comes before the confirm, which is for the broker's part of the work only."""
        task_id = message.properties.get("correlation_id")
        for tag, sent in self._unconfirmed.items():
            if self._broker and sent.refs and sent.refs[0].id == task_id:
                queue = sent.refs[0].queue
                logger.info("the queue %s was deleted and is declared again", queue)
                job_queue(queue)(self._broker.channel).queue_declare(nowait=True)
                self._undelivered.extend(self._unconfirmed.pop(tag).refs)
                return

    def _take(self, delivery_tag: int, multiple: bool) -> list[SentMessage]:
        """What a confirm is about, which is awaited no longer."""
        self._confirmed_at = time.monotonic()
        tags = [delivery_tag] if delivery_tag in self._unconfirmed else []
        if multiple:
            tags = [tag for tag in self._unconfirmed if tag <= delivery_tag]
        found = [self._unconfirmed.pop(tag) for tag in tags]
        if found:
            self._confirmed_sent_at = max(self._confirmed_sent_at, found[-1].sent_at)
        return found


def release_undelivered(engine: Engine, publisher: Publisher) -> BrokerUnavailable | None:
    """Queue again what turned out not to be delivered; the error, if there was any."""
    undelivered = publisher.undelivered()
    if not undelivered:
        return None
    release(engine, undelivered)
    return BrokerUnavailable(f"The broker did not take {len(undelivered)} jobs.")
