"""The slots of a worker process and the jobs it has claimed for them.

Claims have their own group commit: one statement for all messages that arrive together. A slot
is free for the next job when the function returns, and messages are claimed a little ahead of
free slots. A job that is held here is not claimed a second time by the same process, whatever the
row says. A claim is taken once: by the thread that runs it, or to be handed back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext, suppress
from dataclasses import dataclass
from itertools import zip_longest

from sqlalchemy import Engine

from models.jobs.claim import Claim, JobRef, claim_group
from models.jobs.locked import find_locked
from models.store.errors import StatementTooSlow, StateStoreUnavailable
from models.store.group_commit import GroupCommit
from models.store.ticket import Ticket
from tasks.process import bounded_semaphore
from tasks.registry import JobType
from tasks.retry.lost import SUSPECT_CRASHES
from tasks.worker.given_runs import GivenRuns
from tasks.worker.held import Held

logger = logging.getLogger(__name__)

#: Jobs that share a message are expected to begin within a moment. So are given jobs, and those
#: claimed beside them. They are handed back if none of this worker's claims has begun for so long:
#: its slots are taken by longer runs.
STUCK_SECONDS = 2.0
#: Messages that were received and whose task has not started; those of a lost connection never do.
MOST_SOON = 1000
#: Pauses before the first lease of a job is looked for again.
LATE_SECONDS = (0.001, 0.002, 0.004, 0.008)


@dataclass(frozen=True, slots=True)
class Host:
    """The process around a worker: how it is asked to stop, and its names."""

    #: Checked with every heartbeat, where no signal can begin a drain.
    stop_requested: Callable[[], bool] = lambda: False
    #: Whether a drain may take as long as the runs do: they are not to resume elsewhere.
    retiring: Callable[[], bool] = lambda: False
    #: Begins a drain that may take its time, as requested through the row; None: simply drain.
    retire: Callable[[], None] | None = None
    #: Called after each report of the presence.
    reported: Callable[[], None] = lambda: None
    #: What the process belongs to: see `models.presence`.
    parent: str | None = None
    node: str = ""


class Slots:
    def __init__(
        self, engine: Engine, types: Mapping[str, JobType], *, name: str, count: int, host: Host
    ) -> None:
        self.name = name
        self.count = count
        self.free = bounded_semaphore(count)
        self._suspect = bounded_semaphore(1)
        self.draining = False
        self._being_killed = False
        self._engine = engine
        self._types = types
        self._host = host
        self._busy = 0
        #: When a claim last began.
        self._begun_at = time.monotonic()
        self._held: dict[JobRef, Held] = {}
        #: For decisions that the threads of jobs and the heartbeat's must not both make.
        self._deciding = threading.Lock()
        self._unanswered: set[JobRef] = set()
        self._claims: GroupCommit[tuple[JobRef, ...], tuple[Claim, ...]] = GroupCommit(
            self._claim, name="claim", max_group=100, persistent=True
        )
        #: Jobs whose rows were locked at the last claim that waited for any.
        self._locked: frozenset[str] = frozenset()
        #: Jobs that were given to this worker, until their tasks start.
        self.given = GivenRuns()
        #: Called when a run begins, a job is not held any more, or a drain begins.
        self.on_change: Callable[[], object] = lambda: None
        #: Claims of messages whose task has not started.
        self._soon: dict[tuple[JobRef, ...], Ticket[tuple[JobRef, ...], tuple[Claim, ...]]] = {}

    def claim_soon(self, message: tuple[JobRef, ...]) -> None:
        """Begin to claim the jobs of a message whose task is about to start, so that the statement
        is on its way meanwhile; :meth:`claim` waits for it.

        If the task does not start after all, its claims wait in vain and are handed back.
        """
        if not message or message[0] in self.given:
            return
        if message not in self._soon:  # one that came twice has one claim
            with suppress(StateStoreUnavailable):  # the worker stops, and so will the task
                self._soon[message] = self._claims.post(message, awaited=True)
            if len(self._soon) > MOST_SOON:
                del self._soon[next(iter(self._soon))]
            if not self._held and len(self._soon) == 1:
                # Nothing else to do: the statement is sent now, and not after Celery's own work
                # on the message.
                time.sleep(0)

    def claim(self, message: tuple[JobRef, ...]) -> tuple[Claim, ...]:
        """Claim the jobs of a message; waits while the state store is down."""
        if given := self.given.take_claim(message[0]):
            return (given,)
        begun = self._soon.pop(message, None)
        return self._claims.submit(message) if begun is None else begun.result()

    def grant(self, claim: Claim) -> bool:
        """Hold a job that was given to this worker, for :meth:`claim`; False if it is held, or
        about to be."""
        if claim.ref in self._held or claim.ref in self._unanswered:
            return False
        self.given.add(claim)
        # As if it had come with others: it is handed back soon if no slot is free after all.
        self._hold(claim, waits_briefly=True, given=True)
        return True

    def expect(self, ref: JobRef) -> None:
        """A job that may be ours by its row: the next claim asks for it as for one of its own."""
        self._unanswered.add(ref)

    def _hold(
        self,
        claim: Claim,
        *,
        waits_briefly: bool,
        given: bool = False,
        start_unrecorded: bool = False,
    ) -> None:
        job_type = self._types.get(claim.type)
        timeout = job_type.timeout_seconds if job_type else 0.0
        self._held[claim.ref] = Held(
            claim,
            timeout,
            waits_briefly=waits_briefly,
            given=given,
            start_unrecorded=start_unrecorded,
        )

    def claim_late(self, missing: tuple[JobRef, ...]) -> tuple[Claim, ...]:
        """Claim what was not found, a moment later: the API may send the message of a new job while
        its row is still being committed.

        Also while it drains: the message of a job that nobody claims is acknowledged, and the job
        waits for its lease. A claim is handed back, and a message without one is redelivered.
        """
        late: tuple[Claim, ...] = ()
        for seconds in LATE_SECONDS:
            time.sleep(seconds)
            found = self._claims.submit(missing)
            late += found
            missing = self.missing(missing, found)
            if not missing:
                break
        return late

    def missing(
        self, message: tuple[JobRef, ...], claimed: tuple[Claim, ...]
    ) -> tuple[JobRef, ...]:
        """Jobs of a message that were not claimed, and may not be there yet.

        Those with a locked row are: to wait for it again would hold up the claims of all others.
        """
        if len(claimed) == len(message):
            return ()
        found = {claim.ref for claim in claimed} | self._held.keys()
        return tuple(
            ref
            for ref in message
            if ref.lease == 1 and ref not in found and ref.id not in self._locked
        )

    def _claim(self, messages: Sequence[tuple[JobRef, ...]]) -> list[tuple[Claim, ...]]:
        """Held before the callers return: a message that comes twice finds its job held."""
        fresh = [tuple(ref for ref in message if ref not in self._held) for message in messages]
        before = frozenset(self._unanswered)
        asked = {ref for message in fresh for ref in message}
        # The watchdog's thread forbids claims, then reads what is unanswered, then what is
        # held. In this order every claim is either seen by it or never sent.
        self._unanswered |= asked
        if self._being_killed:
            # The writer retries until the process dies, and the broker redelivers the messages.
            raise StateStoreUnavailable("the watchdog is about to kill this process")
        waiting = self._without_slot(fresh)
        try:
            claimed = claim_group(self._engine, self.name, fresh, before, waiting)
        except StatementTooSlow:
            # A job whose row is locked is not claimed: its message is sent again after the lease.
            locked = find_locked(self._engine, {ref.id for ref in asked})
            self._locked = frozenset(locked)
            logger.warning("%d jobs are not claimed: their rows are locked", len(locked))
            fresh = [tuple(ref for ref in each if ref.id not in locked) for each in fresh]
            claimed = claim_group(self._engine, self.name, fresh, before, waiting)
        # The broker does not know of given jobs: it sent as much as if their slots were free.
        given = any(held.given for held in self.held())
        for message, claims in zip(messages, claimed, strict=True):
            for claim in claims:
                unrecorded = claim.ref in waiting or claim.crashes > 0
                brief = len(message) > 1 or given
                self._hold(claim, waits_briefly=brief, start_unrecorded=unrecorded)
        self._unanswered -= asked
        return claimed

    def _without_slot(self, messages: Sequence[tuple[JobRef, ...]]) -> frozenset[JobRef]:
        """What will have to wait for a slot. The first of every message begin first."""
        ahead = sum(not held.taken for held in self.held())
        room = max(0, self.count - self._busy - ahead)
        ordered = [ref for each in zip_longest(*messages) for ref in each if ref is not None]
        return frozenset(ordered[room:])

    def turn(self, claim: Claim) -> AbstractContextManager[object]:
        """Entered before waiting for a slot: jobs that may kill the process take turns.

        See :mod:`tasks.retry.lost`.
        """
        suspect: AbstractContextManager[object] = self._suspect
        return suspect if claim.crashes >= SUSPECT_CRASHES else nullcontext()

    def take(self, claim: Claim, *, begin: bool = False) -> Held | None:
        """End the wait of a claim; None if it was lost, or handed back by the heartbeat.

        The claim itself is compared: after lost commits its number may have been claimed again.
        """
        with self._deciding:
            held = self._held.get(claim.ref)
            if held is None or held.claim is not claim or held.taken:
                return None
            if held.lost:
                del self._held[claim.ref]
                return None
            held.taken = True
            if begin:
                held.begin()
                self._begun_at = time.monotonic()
                self._busy += 1
                self.on_change()
            return held

    def begin(self, claim: Claim) -> Held | None:
        """Take the claim to run it: one decision, so that nobody hands it back meanwhile."""
        return self.take(claim, begin=True)

    def take_waiting(self) -> list[Held]:
        """Take claims that have not begun, to hand them back: all of a worker that drains, as no
        slot may become free before it ends, else those that have waited too long."""
        now, drains = time.monotonic(), self.draining
        stuck = now - self._begun_at >= STUCK_SECONDS
        with self._deciding:
            waiting = [
                held
                for held in self.held()
                if not held.taken
                and not held.lost
                and (drains or held.waited_too_long(now, STUCK_SECONDS if stuck else None))
            ]
            for held in waiting:
                held.taken = True
        return waiting

    def end(self, held: Held) -> None:
        """The slot is free."""
        held.running = False
        with self._deciding:
            self._busy -= 1

    @property
    def busy(self) -> int:
        """Slots in which a job runs."""
        return max(0, self._busy)

    @property
    def held_count(self) -> int:
        """Jobs that run here, wait for a slot, or whose ending is not written yet."""
        return len(self._held)

    def any_waiting(self) -> bool:
        """Whether a claim waits for a slot."""
        return any(not held.taken for held in self.held())

    def held(self) -> list[Held]:
        return list(self._held.values())

    def find(self, ref: JobRef) -> Held | None:
        """The claim of this lease, if it is still held."""
        return self._held.get(ref)

    def forget(self, ref: JobRef) -> Held | None:
        """Drop a claim: its ending is written, or cannot be."""
        self.given.take_claim(ref)
        dropped = self._held.pop(ref, None)
        self.on_change()
        return dropped

    def unanswered(self) -> list[JobRef]:
        """Claims that were sent and may have been granted."""
        return list(self._unanswered)

    def drain(self) -> None:
        """Claim nothing more; runs continue. Also ends claims that wait for the store."""
        self.draining = True
        self._claims.close(0)
        self.on_change()

    def note_drain(self) -> None:
        """Begin to drain from inside a signal handler: takes no lock, the next heartbeat does."""
        self.draining = True

    def forbid_claims(self) -> None:
        """For the watchdog, before it kills the process: what it hands back stays unclaimed."""
        self.draining = True
        self._being_killed = True

    def drains(self) -> bool:
        """Whether the process was asked to stop."""
        return self.draining or self._host.stop_requested()

    def cuts_runs_short(self) -> bool:
        """Whether runs are to end at their next checkpoint and resume elsewhere."""
        return self.draining and not self._host.retiring()
