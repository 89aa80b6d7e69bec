"""Offers of an idle worker: the next job of its pools that comes alone is given to it at once.

See :mod:`models.jobs.offer`. One thread listens, another writes offers when the worker becomes
idle, and takes them back when its last slot is taken. Nothing is offered unless messages are heard:
behind a pooler that changes sessions none are. What was given while nobody listened is found when
it listens again, and handed back if the worker stops. A connection that turns out to be deaf is
replaced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta

from models.jobs.claim import JobRef, claim_group
from models.jobs.offer import GivenJob, channel_of, offer, probe, read_ours, told_job, withdraw
from models.store.clock import DATABASE_CLOCK
from models.store.errors import StateStoreUnavailable
from models.wakeups import WakeupListener
from tasks.worker.worker import Worker

logger = logging.getLogger(__name__)

#: A message that is heard so late may be of a claim that was lost meanwhile: the row is asked. A
#: worker counts as lost after six seconds.
LATE = timedelta(seconds=1)
#: An offer that stands for so long is written anew when the worker has done something else
#: meanwhile: it may have been dropped.
STALE_SECONDS = 2.0
#: Pause after an offer that could not be written.
RETRY_SECONDS = 1.0


class Offers:
    def __init__(
        self, worker: Worker, pools: Sequence[str], deliver: Callable[[GivenJob], None]
    ) -> None:
        """``deliver`` begins a job as if its message had come."""
        self._worker = worker
        self._slots = worker.slots
        self._engine = worker.engine
        self._pools = pools
        self._deliver = deliver
        self._listener = WakeupListener(
            self._engine, self._heard, channel_of(worker.name), self._find_out
        )
        self._changed = threading.Event()
        self._closed = False
        #: A message was heard since it listens; and the last one that it sent itself was not yet.
        self._hears = False
        self._awaits = False
        #: Jobs that were found when it began to listen: their messages may come after all.
        self._found: set[JobRef] = set()
        #: When the offers were written that stand, as far as is known.
        self._offered: float | None = None

    def start(self) -> None:
        self._slots.on_change = self._changed.set
        self._listener.start()
        threading.Thread(target=self._write_offers, name="offers", daemon=True).start()

    def close(self) -> None:
        """Take back the offers, and hand back what was given meanwhile."""
        self._closed = True
        self._slots.note_drain()
        self._changed.set()
        self._listener.close()
        try:
            self._withdraw()
        except Exception as error:  # noqa: BLE001 - the worker has to stop in any case
            logger.warning("what was given in the last moment is reaped: %s", error)

    def _heard(self, messages: Sequence[str]) -> None:
        """Called by the listener: first with none."""
        if not messages:
            self._hears, self._offered = False, None
            found = self._unknown()
            self._found = {job.ref for job in found}
            self._accept(found)
            self._probe()
            return
        self._hears, self._awaits = True, False
        told = [told_job(message) for message in messages if message]
        told = [job for job in told if job.ref not in self._found]
        if told:
            self._offered = None
            self._accept(told)
        self._changed.set()

    def _find_out(self) -> None:
        """Nothing was heard for a while: would it be?"""
        if self._awaits:
            self._hears = False
            raise StateStoreUnavailable("the worker does not hear what it is told")
        self._probe()

    def _probe(self) -> None:
        self._awaits = True
        probe(self._engine, self._worker.name)

    def _accept(self, jobs: Sequence[GivenJob]) -> None:
        for job in jobs:
            if job.cancelled or self._slots.drains():
                self._hand_back(job)
            elif job.claim is None or DATABASE_CLOCK.now() - job.claim.created_at > LATE:
                self._slots.expect(job.ref)
                self._deliver(job)
            elif self._slots.grant(job.claim):
                self._deliver(job)

    def _unknown(self) -> list[GivenJob]:
        """Jobs that run here by their rows, and are not held."""
        ours = read_ours(self._engine, self._worker.name)
        return [job for job in ours if self._slots.find(job.ref) is None]

    def _hand_back(self, job: GivenJob) -> None:
        again = frozenset({job.ref})
        for claims in claim_group(self._engine, self._worker.name, [(job.ref,)], again):
            for claim in claims:
                self._worker.ledger.release(claim)

    def _write_offers(self) -> None:
        while True:
            self._changed.wait()
            self._changed.clear()
            if self._closed:
                return
            try:
                self._adjust()
            except Exception as error:  # noqa: BLE001 - also a schema that was taken back
                logger.debug("nothing can be offered: %s", error)
                self._offered = None
                time.sleep(RETRY_SECONDS)
                self._changed.set()

    def _adjust(self) -> None:
        """Offer what is free, and nothing else."""
        slots, now = self._slots, time.monotonic()
        if slots.drains() or slots.busy >= slots.count:
            if self._offered is not None:
                self._withdraw()
        elif slots.held() or not (self._hears and self._listener.listening):
            pass
        elif self._offered is None or now - self._offered > STALE_SECONDS:
            # First: the message may come before the statement's own answer.
            self._offered = now
            if not offer(self._engine, self._worker.name, self._pools):
                self._offered = None  # there is no lane yet
                time.sleep(RETRY_SECONDS)
                self._changed.set()

    def _withdraw(self) -> None:
        self._offered = None
        withdraw(self._engine, self._worker.name)
        if self._slots.drains():
            self._accept(self._unknown())
