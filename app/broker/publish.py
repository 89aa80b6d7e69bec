"""Publisher: sends job references to the queue of their pool, and reads the broker's confirms.

A confirm per message would cost a round trip each, so the confirms of a group are awaited together,
and not at all while they are slow (:mod:`app.policy.confirms`). Everything is bounded in time.

What becomes of a message:

* confirmed: it is at the broker.
* not confirmed yet: unknown. Its jobs stay dispatched; the message is probably there.
* returned, as its queue was deleted: the queue is declared again and the message sent again.
* refused, returned twice, or unconfirmed on a connection that was lost: not delivered. The caller
  releases its jobs: see ``undelivered``. One that arrives all the same does no harm: its lease
  number no longer matches.
"""

from __future__ import annotations

import logging
import os
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from celery import Celery
from kombu import Queue

from app.broker.connect import Link, Opening
from app.broker.queues import job_queue
from app.errors import BrokerUnavailable
from app.policy.confirms import expected_latency, patience, silence
from app.policy.window import packs, refs_in_message
from app.telemetry.hooks import dispatching
from models.jobs.dispatch import Dispatch
from models.jobs.trace_context import trace_headers
from models.pools import POOLS, UNMEASURED_REFS
from models.tallies import Count, Tallies, TallyKind

logger = logging.getLogger(__name__)

NOTHING_KNOWN: Mapping[str, float] = {}


@dataclass(frozen=True, slots=True)
class SentMessage:
    """A message whose confirm is awaited; without references, a probe."""

    sent_at: float
    refs: Sequence[Dispatch] = ()
    #: Sent again after it was returned.
    again: bool = False


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
        self._opening: Opening | None = None
        self._link: Link | None = None
        self._tag = 0
        #: By delivery tag, so in the order of sending.
        self._unconfirmed: dict[int, SentMessage] = {}
        self._returned: list[SentMessage] = []
        self._undelivered: list[Dispatch] = []
        self._latency = 0.0
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
    ) -> bool:
        """Send the references; whether the broker has answered for everything sent so far.

        :class:`BrokerUnavailable` means that these dispatches are not delivered.
        ``lengths`` are the seconds that jobs take by type, as far as they are known.
        """
        with dispatching(dispatches):
            link = self._open()
            try:
                self._read_confirms(link, 0.0)
                for group in by_destination(dispatches):
                    seconds = lengths.get(group[0].type)
                    most = refs_in_message(most_refs(group[0]), seconds, UNMEASURED_REFS)
                    for pack in packs(group, most, workers):
                        self._send(link, pack)
                self._read_confirms(link, patience(self._latency, self._timeout_seconds))
            except link.errors() as error:
                self.close()
                raise BrokerUnavailable(f"The broker did not take the message: {error}") from error
            if self.tallies is not None:
                self.tallies.add_all(handed_over(dispatches))
            return not self._unconfirmed

    def ping(self) -> None:
        """Raise :class:`BrokerUnavailable` unless the broker takes messages, late or not."""
        link = self._open()
        try:
            if link.confirms:
                self._probe(link)
            else:
                folder = Path(self._celery.conf.broker_transport_options["data_folder_out"])
                if not os.access(folder, os.W_OK):
                    raise OSError(f"{folder} is not writable")
        except link.errors() as error:
            self.close()
            raise BrokerUnavailable(str(error)) from error

    def undelivered(self) -> list[Dispatch]:
        """Dispatches of earlier calls that turned out not to be delivered, each of them once."""
        link = self._link
        if link is not None and self._unconfirmed:
            try:
                self._read_confirms(link, 0.0)
            except link.errors() as error:
                logger.warning("the connection to the broker is lost: %s", error)
                self.close()
        found, self._undelivered = self._undelivered, []
        return found

    def close(self) -> None:
        """Drop the connection; what is not confirmed counts as not delivered."""
        link, self._link = self._link, None
        opening, self._opening = self._opening, None
        for sent in (*self._unconfirmed.values(), *self._returned):
            self._undelivered.extend(sent.refs)
        self._unconfirmed.clear()
        self._returned.clear()
        self._slices.clear()
        if opening is not None:
            opening.abandon()
        if link is not None:
            link.close()

    def _open(self) -> Link:
        """The connection; one that is still being opened is waited for only at first."""
        if self._link is not None:
            return self._link
        seconds = 0.0 if self._opening else self._timeout_seconds
        self._opening = self._opening or Opening(self._celery, self._timeout_seconds)
        link = self._opening.wait(seconds)
        if link is None:
            error = self._opening.error
            if self._opening.ended:
                self._opening = None
            raise BrokerUnavailable(f"No connection to the broker: {error or 'it is slow'}")
        self._opening, self._link = None, link
        self._tag, self._latency, self._read_at = 1, link.latency, time.monotonic()
        if link.confirms:
            link.channel.events["basic_ack"].add(self._on_ack)
            link.channel.events["basic_nack"].add(self._on_nack)
            link.channel.events["basic_return"].add(self._on_return)
        return link

    def _send(self, link: Link, pack: Sequence[Dispatch], again: bool = False) -> None:
        first = pack[0]
        if link.confirms:
            # Before it is sent: the write itself may read a confirm.
            self._tag += 1
            self._unconfirmed[self._tag] = SentMessage(time.monotonic(), pack, again)
        self._celery.send_task(
            first.type,
            args=([[dispatch.id, dispatch.lease] for dispatch in pack],),
            # Shown by Flower; Celery's own repr of the arguments costs a quarter of a publish.
            argsrepr=f"({len(pack)} job{'s' if len(pack) > 1 else ''})",
            kwargsrepr="{}",
            task_id=first.id,
            # The span of a message belongs to the trace of its first job.
            headers=trace_headers(first.traceparent),
            queue=self._slice_queue(link, first) if first.slice else first.pool,
            producer=link.producer,
            # All are declared already; Celery would wait for an answer.
            declare=(),
            mandatory=True,
            retry=False,
        )

    def _slice_queue(self, link: Link, dispatch: Dispatch) -> Queue:
        """The queue of a slice, like its pool's; declared once per connection."""
        if dispatch.queue not in self._slices:
            queue = self._slices[dispatch.queue] = job_queue(dispatch.queue)
            queue(link.channel).queue_declare(nowait=link.confirms)
        return self._slices[dispatch.queue]

    def _probe(self, link: Link) -> None:
        if all(sent.refs for sent in self._unconfirmed.values()):
            self._tag += 1
            self._unconfirmed[self._tag] = SentMessage(time.monotonic())
            link.probe()
        self._read_confirms(link, patience(self._latency, self._timeout_seconds))

    def _read_confirms(self, link: Link, seconds: float) -> None:
        """Read until everything is confirmed, for so long at most; raises if it was silent."""
        begun = time.monotonic()
        self._unread_seconds = begun - self._read_at
        while self._unconfirmed:
            try:
                left = max(0.0, begun + seconds - time.monotonic())
                link.connection.drain_events(timeout=left)
            except TimeoutError:
                break
            self._send_again(link)
        self._read_at = time.monotonic()
        oldest = self._oldest_seconds()
        if oldest > silence(self._timeout_seconds):
            raise TimeoutError(f"nothing was confirmed for {oldest:.0f} s")
        self._latency = max(self._latency, oldest)
        slow = self._latency > self._timeout_seconds
        if slow != self._slow:
            logger.warning("the broker confirms %s", "late" if slow else "in time again")
        self._slow = slow

    def _oldest_seconds(self) -> float:
        """How long the oldest message has not been confirmed."""
        oldest = next(iter(self._unconfirmed.values()), None)
        return time.monotonic() - oldest.sent_at if oldest else 0.0

    def _send_again(self, link: Link) -> None:
        """Declare the queues of returned messages anew."""
        returned, self._returned = self._returned, []
        for name in {sent.refs[0].queue for sent in returned}:
            logger.warning("the queue %s was deleted and is declared again", name)
            job_queue(name)(link.channel).queue_declare(nowait=True)
        for sent in returned:
            self._send(link, sent.refs, again=True)

    def _on_ack(self, delivery_tag: int, multiple: bool) -> None:
        for sent in self._take(delivery_tag, multiple):
            # What was sent before the last reading may have been confirmed at any time since.
            seconds = time.monotonic() - sent.sent_at - self._unread_seconds
            self._latency = expected_latency(self._latency, max(0.0, seconds))

    def _on_nack(self, delivery_tag: int, multiple: bool) -> None:
        for sent in self._take(delivery_tag, multiple):
            self._undelivered.extend(sent.refs)

    def _on_return(self, error: Any, exchange: str, routing_key: str, message: Any) -> None:
        """Comes before the confirm, which is for the broker's part of the work only."""
        task_id = message.properties.get("correlation_id")
        for tag, sent in self._unconfirmed.items():
            if sent.refs and sent.refs[0].id == task_id:
                del self._unconfirmed[tag]
                if sent.again:
                    self._undelivered.extend(sent.refs)
                else:
                    self._returned.append(sent)
                return

    def _take(self, delivery_tag: int, multiple: bool) -> list[SentMessage]:
        """What a confirm is about, which is awaited no longer."""
        if not multiple:
            sent = self._unconfirmed.pop(delivery_tag, None)
            return [sent] if sent else []
        tags = [tag for tag in self._unconfirmed if tag <= delivery_tag]
        return [self._unconfirmed.pop(tag) for tag in tags]


def handed_over(dispatches: Sequence[Dispatch]) -> list[Count]:
    """What a publish adds to the counts."""
    by_pool = Counter(each.pool for each in dispatches)
    return [((TallyKind.DISPATCHED, pool), (jobs, 0)) for pool, jobs in by_pool.items()]


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
