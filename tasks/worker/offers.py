"""Offers of a worker with free slots: the next jobs of its pools that come alone are given to it.

See :mod:`models.jobs.offer`. One thread listens, another writes offers for the slots that are free,
anew when half of them are taken, and takes them back when its last slot is taken. Nothing is
offered unless messages are heard: behind a pooler that changes sessions none are. What was given
while nobody listened is found when it listens again, and handed back if the worker stops. A
connection that turns out to be deaf is replaced.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Collection, Sequence
from datetime import timedelta

from models.jobs.claim import Claim, JobRef, claim_group
from models.jobs.offer import GivenJob, channel_of, offer, probe, read_ours, told_job, withdraw
from models.store.clock import DATABASE_CLOCK
from models.store.errors import StatementTooSlow, StateStoreUnavailable
from models.wakeups import WakeupListener
from tasks.worker.worker import Worker

logger = logging.getLogger(__name__)

#: A message that is heard so late may be of a claim that was lost meanwhile: the row is asked.
LATE = timedelta(seconds=1)
#: Jobs that a worker offers to run at most, in all its pools: if it is lost, so many wait for the
#: reaper beside those that it runs.
MOST_OFFERED = 16
#: An offer that stands for so long is written anew when the worker has done something else
#: meanwhile: it may have been dropped.
STALE_SECONDS = 2.0
#: Pause after an offer that could not be written.
RETRY_SECONDS = 1.0
#: A statement of an offer that is under way is waited for so long, when the worker stops.
CLOSE_SECONDS = 2.0
#: Attempts to take the offers back then, while the lane's row is locked.
CLOSE_TRIES = 4


def jobs_to_offer(slots: int, held: int, standing: Collection[int]) -> int | None:
    """How many jobs to offer to run in each pool; None: what stands is about right.

    ``held``: jobs that are not over, also those that wait for a slot; ``standing``: what is left of
    the offers, by pool. While most slots are taken none is written, since there may be a queue:
    then a slot that is free is taken by the next message.
    """
    free = slots - held
    most = min(free, MOST_OFFERED)
    if most <= 0:
        return 0 if any(standing) else None
    share = max(1, most // len(standing))
    if sum(standing) > max(most, len(standing)) + min(slots, MOST_OFFERED) // 4:
        return share
    if min(standing) * 2 <= share and free * 4 >= min(slots, 4 * MOST_OFFERED):
        return share
    return None


class Offers:
    def __init__(
        self, worker: Worker, pools: Sequence[str], begin_job: Callable[[GivenJob], None]
    ) -> None:
        """``begin_job`` starts a job that this worker holds."""
        self._worker = worker
        self._slots = worker.slots
        self._engine = worker.engine
        self._pools = pools
        self._begin_job = begin_job
        self._listener = WakeupListener(
            self._engine, self._heard, channel_of(worker.name), self._find_out
        )
        self._writer = threading.Thread(target=self._write_offers, name="offers", daemon=True)
        self._changed = threading.Event()
        self._closed = False
        #: A message was heard since it listens; and the last one that it sent itself was not yet.
        self._hears = False
        self._awaits = False
        #: Jobs that were found when it began to listen: their messages may come after all.
        self._found: set[JobRef] = set()
        #: What is left of the offers, as far as is known, and when they were written.
        self._standing = dict.fromkeys(pools, 0)
        self._written_at = 0.0
        #: Some were written before all earlier ones were known to be taken: more may stand.
        self._more_may_stand = False

    def start(self) -> None:
        self._slots.on_change = self._note_change
        self._listener.start()
        self._writer.start()

    def close(self) -> None:
        """Take back the offers, and hand back what was given meanwhile."""
        self._closed = True
        self._slots.note_drain()
        self._changed.set()
        self._listener.close()
        if self._writer.is_alive():  # what it writes now would be missed
            self._writer.join(CLOSE_SECONDS)
        for tries_left in reversed(range(CLOSE_TRIES)):
            try:
                self._withdraw()
                return
            except Exception as error:  # noqa: BLE001 - the worker has to stop in any case
                if not (tries_left and isinstance(error, StatementTooSlow)):
                    logger.warning("what was given in the last moment is reaped: %s", error)
                    return

    def _heard(self, messages: Sequence[str]) -> None:
        """Called by the listener: first with none."""
        if not messages:
            self._hears = False
            self._doubt()
            found = self._unknown()
            self._found = {job.ref for job in found}
            self._accept(found)
            self._probe()
            return
        self._hears, self._awaits = True, False
        told = [told_job(message) for message in messages if message]
        told = [job for job in told if job.ref not in self._found]
        for job in told:
            self._take(job)
        self._accept(told)
        self._note_change()

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
        begin = []
        for job in jobs:
            if job.cancelled or self._slots.drains():
                self._hand_back(job)
            elif job.claim is None or self._may_be_lost(job.claim):
                self._slots.expect(job.ref)
                begin.append(job)
            elif self._slots.grant(job.claim):
                begin.append(job)
        for job in begin:  # all are held by now, and handed back if they cannot begin
            self._begin_job(job)

    def _may_be_lost(self, claim: Claim) -> bool:
        late = DATABASE_CLOCK.now() - claim.created_at > LATE
        return late or self._worker.heartbeat.may_have_lost(claim.created_at)

    def _unknown(self) -> list[GivenJob]:
        """Jobs that run here by their rows, and are not held."""
        ours = read_ours(self._engine, self._worker.name)
        return [job for job in ours if self._slots.find(job.ref) is None]

    def _hand_back(self, job: GivenJob) -> None:
        again = frozenset({job.ref})
        for claims in claim_group(self._engine, self._worker.name, [(job.ref,)], again):
            for claim in claims:
                self._worker.ledger.release(claim)

    def _take(self, job: GivenJob) -> None:
        """An offer was taken; a message without the row does not say of which pool."""
        for pool, jobs in self._standing.items():
            if job.claim is None or job.claim.pool == pool:
                self._standing[pool] = max(0, jobs - 1)
        if job.claim is None and len(self._standing) > 1:
            self._more_may_stand = True

    def _stand(self, jobs: int) -> None:
        """So many stand in each pool, and perhaps more if jobs were given meanwhile."""
        before = self._more_may_stand or any(self._standing.values())
        self._more_may_stand = jobs > 0 and before
        self._standing = dict.fromkeys(self._pools, jobs)
        self._written_at = time.monotonic()

    def _doubt(self) -> None:
        """Whether any stand is not known."""
        self._stand(0)
        self._more_may_stand = True

    def _note_change(self) -> None:
        """Called at each start and end of a run, which costs little as long as nothing is due."""
        if self._slots.drains() or self._due() is not None:
            self._changed.set()

    def _due(self) -> int | None:
        """What has to be offered now, in each pool."""
        slots, held = self._slots.count, self._slots.held_count
        standing: Collection[int] = self._standing.values()
        due = jobs_to_offer(slots, held, standing)
        if due is None and time.monotonic() - self._written_at > STALE_SECONDS:
            due = jobs_to_offer(slots, held, (0,) * len(standing))  # they may have been dropped
        if due is None and self._more_may_stand and not any(standing):
            return 0
        return due

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
                self._doubt()
                time.sleep(RETRY_SECONDS)
                self._changed.set()

    def _adjust(self) -> None:
        """Offer what is free, and nothing else."""
        jobs = 0 if self._slots.drains() else self._due()
        if jobs == 0 and (self._more_may_stand or any(self._standing.values())):
            self._withdraw()
        elif jobs and self._hears and self._listener.listening:
            # First: the message may come before the statement's own answer.
            self._stand(jobs)
            if not offer(self._engine, self._worker.name, self._pools, jobs):
                self._doubt()  # there is no lane yet
                time.sleep(RETRY_SECONDS)
                self._changed.set()

    def _withdraw(self) -> None:
        self._stand(0)
        withdraw(self._engine, self._worker.name)
        if self._slots.drains():
            self._accept(self._unknown())
