"""A worker process: its slots, its claims and the two groups it writes in.

Claims go through one group commit; endings, checkpoints and heartbeats through another: at
most two connections whatever the concurrency, and none while a job runs. A slot is free for
the next job when the function returns: the ending is written behind, and messages are
claimed a little ahead.

Guarantees: a claim is renewed until its ending is written or its lease is lost; a lost
lease writes nothing. Not guaranteed: that a job runs once. It runs at least once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from random import Random

from sqlalchemy import Engine

from models.blobs import BlobStore, open_blobs
from models.errors import StateStoreError, StateStoreUnavailable
from models.group_commit import GroupCommit
from models.presence import PRESENCE_SECONDS, Presence, announce, leave
from models.states import FailureClass, JobStatus
from tasks.registry import JobType
from tasks.retry.decision import GOOD_STANDING
from tasks.runtime.checkpoint import Loaded, Loading, Saved, Saving, load_group, save_group
from tasks.runtime.claim import Claim, JobRef, claim_group
from tasks.runtime.closing import close_run, settlement_of, standing_of
from tasks.runtime.heartbeat import beat, read_cancelled, report
from tasks.runtime.held import Held
from tasks.runtime.outcome import Ending, Outcome, Released, Succeeded, plain_text
from tasks.runtime.prepare import Prepared
from tasks.runtime.process import bounded_semaphore
from tasks.runtime.quotas import Quotas
from tasks.runtime.rules import Rules, read_rules
from tasks.runtime.settle import Settlement, settle_group, settle_statement
from tasks.runtime.tallies import Tallies
from tasks.runtime.tally import count_run
from tasks.runtime.tracing import note_settled

logger = logging.getLogger(__name__)

#: What goes through the ledger: endings, checkpoints both ways, and the pulse of the process.
Entry = Settlement | Saving | Loading | Presence
Answer = Saved | Loaded | None


class Worker:
    """What a process needs to run jobs."""

    def __init__(
        self,
        engine: Engine,
        types: Mapping[str, JobType],
        *,
        name: str,
        pools: Sequence[str],
        slots: int,
        blobs: BlobStore | None = None,
        prepared: Prepared | None = None,
    ) -> None:
        self.name = name
        self.types = types
        self.slots = slots
        self.engine = engine
        self.blobs = blobs or open_blobs(".run/blobs")
        self.prepared = prepared or Prepared()
        self.draining = False
        #: The watchdog is about to kill the process: what it hands back must not be claimed again.
        self.being_killed = False
        #: Asked with every heartbeat, where no signal can set ``draining``.
        self.told_to_stop: Callable[[], bool] = lambda: False
        #: Whether a drain may take as long as the runs do: they are not to go on elsewhere.
        self.retiring: Callable[[], bool] = lambda: False
        #: Begins a drain that may take its time, because the row asks for one.
        self.retire: Callable[[], None] = self.drain
        #: As the row names what the process belongs to: see `models.presence`.
        self.parent: str | None = None
        self.node = ""
        self.free_slots = bounded_semaphore(slots)
        self.rules = Rules()
        self.tallies = Tallies()
        self.quotas = Quotas({one.dependency for one in types.values() if one.dependency})
        self._pools = tuple(pools)
        self._busy = 0
        self._held: dict[JobRef, Held] = {}
        self._unanswered: set[JobRef] = set()
        self._chance = Random()
        self.settle_sql = settle_statement(types.values())
        self._claims: GroupCommit[tuple[JobRef, ...], tuple[Claim, ...]] = GroupCommit(
            self._claim, name="claim", max_group=100, persistent=True
        )
        self._ledger: GroupCommit[Entry, Answer] = GroupCommit(
            self._write_ledger, name="settle", persistent=True, on_refused=self._refuse
        )
        self._stop = threading.Event()
        self._beaten = time.monotonic()
        self._introduced = False
        self._pulse: threading.Thread | None = None

    def start(self) -> None:
        """Begin to send heartbeats."""
        self._pulse = threading.Thread(target=self._keep_alive, name="heartbeat", daemon=True)
        self._pulse.start()

    def claim(self, message: tuple[JobRef, ...]) -> tuple[Claim, ...]:
        """Claim the jobs of a message; waits while the state store is away."""
        return self._claims.submit(message)

    def begin(self, claim: Claim) -> Held:
        """Mark the run as started."""
        held = self._held[claim.ref]
        held.begin()
        self._busy += 1
        return held

    def save(self, saving: Saving) -> Saved:
        """Write a checkpoint and wait for the commit, also while the state store is away."""
        saved = self._ledger.submit(saving, weight=len(saving.state or ""))
        assert isinstance(saved, Saved)
        return saved

    def load(self, job_id: str) -> Loaded:
        """Read a job's checkpoint; waits while the state store is away.

        Through the ledger: a connection of the run's own would be one too many.
        """
        loaded = self._ledger.submit(Loading(job_id))
        assert isinstance(loaded, Loaded)
        return loaded

    def settle(self, claim: Claim, outcome: Outcome, run_seconds: float) -> None:
        """Write the end of the run behind; the caller goes on at once."""
        job_type = self.types.get(claim.type)
        standing = GOOD_STANDING
        if not isinstance(outcome, Succeeded):
            unwritten = self.tallies.unwritten("retry", str(claim.tenant_id))
            standing = standing_of(claim, self.rules, unwritten)
        outcome, ending = close_run(claim, outcome, job_type, standing, self._chance)
        count_run(self.tallies, claim, job_type, outcome, ending, run_seconds)
        held = self._held.get(claim.ref)
        # Before the ending is posted: the statement that writes it writes a refusal first.
        self.quotas.count_run(claim, outcome, held, time.monotonic())
        settlement = settlement_of(claim, ending, run_seconds, held)
        self._ledger.post(settlement, len(ending.result or "") + len(settlement.progress or ""))

    def end(self, held: Held) -> None:
        """The slot is free."""
        held.running = False
        self._busy -= 1

    def held(self) -> list[Held]:
        """The claims in the hands of this process."""
        return list(self._held.values())

    def unanswered(self) -> list[JobRef]:
        """What this process has asked for and may have got."""
        return list(self._unanswered)

    def drain(self) -> None:
        """Claim nothing more; what runs goes on. Also ends claims that wait for the store."""
        self.draining = True
        self._claims.close(0)

    def abandon(self, claim: Claim) -> bool:
        """Give up a claim whose lease is known to be lost; whether it was."""
        held = self._held.get(claim.ref)
        if held is None or held.lost:
            self._held.pop(claim.ref, None)
            return True
        return False

    def stop(self, timeout: float = 10.0) -> None:
        """Write everything that is still to be written, and leave."""
        self.drain()
        self._stop.set()
        if not self._ledger.close(timeout):
            logger.error("the last results could not be written; their leases will expire")
        try:
            self.tallies.write(self.engine)
            self.quotas.write(self.engine, time.monotonic())
            leave(self.engine, self.name)
        except StateStoreError as error:
            logger.warning("could not say good-bye: %s", error)

    def _claim(self, messages: Sequence[tuple[JobRef, ...]]) -> list[tuple[Claim, ...]]:
        """Held before the callers are told: a message that comes twice finds its job taken."""
        fresh = [tuple(ref for ref in message if ref not in self._held) for message in messages]
        before = frozenset(self._unanswered)
        asked = {ref for message in fresh for ref in message}
        # The watchdog's thread sets ``being_killed``, then reads what is unanswered, then what is
        # held. In this order every claim is either seen by it or never sent.
        self._unanswered |= asked
        if self.being_killed:
            # Parks the writer in its retries: the messages go back to the broker with the process.
            raise StateStoreUnavailable("the watchdog is about to kill this process")
        claimed = claim_group(self.engine, self.name, fresh, before)
        for claims in claimed:
            for claim in claims:
                job_type = self.types.get(claim.type)
                timeout = job_type.timeout_seconds if job_type else 0.0
                self._held[claim.ref] = Held(claim, timeout)
        self._unanswered -= asked
        return claimed

    def _presence(self) -> Presence:
        return Presence(
            name=self.name,
            kind="worker",
            pools=self._pools,
            slots=self.slots,
            busy=max(0, self._busy),
            draining=self.draining,
            parent=self.parent,
            node=self.node,
        )

    def _keep_alive(self) -> None:
        try:
            sent = self._ledger.post(self._presence())
            while not self._stop.wait(PRESENCE_SECONDS):
                if self._drains():
                    self.drain()
                    self._release_waiting()
                if sent.done:  # while the store is away, one heartbeat in line is enough
                    sent = self._ledger.post(self._presence())
        except StateStoreUnavailable:
            pass  # the ledger was closed: the worker stops

    def _drains(self) -> bool:
        return self.draining or self.told_to_stop()

    def _release_waiting(self) -> None:
        """Hand back what waits for a slot: it may not come before the process has to go."""
        for held in self.held():
            if held.started is None and not held.lost:
                held.lost = True
                self.settle(held.claim, Released(), 0.0)

    def _write_ledger(self, group: Sequence[Entry]) -> list[Answer]:
        try:
            return self._write(group)
        except MemoryError as error:
            # A run took it all; there will be some when it has ended. Nothing here is at fault.
            raise StateStoreUnavailable("out of memory") from error

    def _write(self, group: Sequence[Entry]) -> list[Answer]:
        """Heartbeats first: they may be repeated if what follows has to be tried again."""
        if any(isinstance(item, Presence) for item in group):
            self._show_life()
        if self.quotas.due(time.monotonic()):
            self.quotas.write(self.engine, time.monotonic())
        answers: dict[Entry, Answer] = {}
        if savings := [item for item in group if isinstance(item, Saving)]:
            self._keep_showing_life()
            answers.update(zip(savings, save_group(self.engine, savings), strict=True))
        if loadings := [item for item in group if isinstance(item, Loading)]:
            self._keep_showing_life()
            answers.update(zip(loadings, load_group(self.engine, loadings), strict=True))
        if settlements := [item for item in group if isinstance(item, Settlement)]:
            self._keep_showing_life()
            self._write_settlements(settlements)
        return [answers.get(item) for item in group] if answers else [None] * len(group)

    def _keep_showing_life(self) -> None:
        """A heartbeat may stand in line behind statements that are slow, or fail for ever."""
        late = time.monotonic() - self._beaten >= PRESENCE_SECONDS
        if late and self._pulse is not None and not self._stop.is_set():
            self._show_life()

    def _show_life(self) -> None:
        self._beat()
        if not self._introduced:
            # Who had this name before is gone, and what was asked of it was not asked of us.
            leave(self.engine, self.name)
            self._introduced = True
        if announce(self.engine, self._presence()) and not self._drains():
            self.retire()
        self._exchange()
        self._beaten = time.monotonic()

    def _write_settlements(self, settlements: Sequence[Settlement]) -> None:
        written = settle_group(self.engine, self.settle_sql, settlements)
        for settlement, ours in zip(settlements, written, strict=True):
            held = self._held.pop(settlement.ref, None)
            if ours and held is not None:
                note_settled(held.claim, settlement)
            if not ours:
                logger.warning(
                    "lease %d of job %s was lost; its %s is refused",
                    settlement.ref.lease,
                    settlement.ref.id,
                    settlement.ending.status,
                )

    def _beat(self) -> None:
        now = time.monotonic()
        due = [held for held in self.held() if held.due(now)]
        kept = beat(self.engine, [held.claim.ref for held in due])
        for held in due:
            if held.claim.ref in kept:
                held.beaten = now
            elif held.claim.ref in self._held:
                held.lost = True

    def _exchange(self) -> None:
        """Hand in counts and progress; hear of rules and cancellations."""
        self.tallies.write(self.engine)
        self.rules = read_rules(self.engine)
        self.quotas.hear(self.rules.quotas, time.monotonic())
        self._report()
        for ref in read_cancelled(self.engine, self.name):
            known = self._held.get(ref)
            if known is not None and known.cancelled is None:
                known.cancelled = time.monotonic()

    def _report(self) -> None:
        behind = [held for held in self.held() if not held.progress_written]
        for held in behind:
            held.progress_written = True  # first: what the run says from here on is news again
        try:
            report(self.engine, [(held.claim.ref, held.progress or "null") for held in behind])
        except BaseException:
            for held in behind:
                held.progress_written = False
            raise

    def _refuse(self, item: Entry, error: Exception) -> None:
        """The database will not take this ending (say, a result with a NUL): the job is dead."""
        if not isinstance(item, Settlement):
            return
        if item.ending.status is JobStatus.DEAD:
            self._held.pop(item.ref, None)  # let its lease run out; nothing more can be said
            return
        # Not the whole text: SQLAlchemy's holds the statement.
        reason = plain_text(getattr(error, "orig", error), 400).partition("\n")[0]
        message = f"The result could not be stored: {reason}"
        ending = Ending(
            JobStatus.DEAD,
            tries_spent=1,
            error_class=FailureClass.APP_ERROR,
            error_message=message,
        )
        try:
            self._ledger.post(Settlement(item.ref, ending, item.run_seconds))
        except StateStoreUnavailable:
            self._held.pop(item.ref, None)  # the worker stops; the lease will run out
