"""A worker process: its slots, its claims and the two groups it writes in.

Claims go through one group commit, endings and heartbeats through another: at most two
connections whatever the concurrency, and none while a job runs. A slot is free for the
next job when the function returns: the ending is written behind, and messages are claimed
a little ahead.

Guarantees: a claim is renewed until its ending is written or its lease is lost; a lost
lease writes nothing. Not guaranteed: that a job runs once. It runs at least once.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from random import Random

from sqlalchemy import Engine

from models.errors import StateStoreError, StateStoreUnavailable
from models.group_commit import GroupCommit
from models.pools import POOLS
from models.presence import PRESENCE_SECONDS, Presence, announce, leave
from models.states import FailureClass, JobStatus
from tasks.registry import JobType
from tasks.retry import History
from tasks.runtime.claim import Claim, JobRef, claim_group
from tasks.runtime.heartbeat import beat
from tasks.runtime.outcome import Ending, Failed, Outcome, ending_of
from tasks.runtime.settle import Settlement, settle_group, settle_statement

logger = logging.getLogger(__name__)


@dataclass(slots=True)
class Held:
    """A claim that this process holds."""

    claim: Claim
    timeout_seconds: float
    #: Set when the lease is known to be lost.
    lost: threading.Event
    started: float | None = None
    beaten: float = field(default_factory=time.monotonic)

    def due(self, now: float) -> bool:
        """Whether to renew the lease; a run beyond its time limit is renewed no more."""
        if self.started is not None and now - self.started > self.timeout_seconds:
            return False
        return now - self.beaten >= POOLS[self.claim.pool].heartbeat_seconds


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
    ) -> None:
        self.name = name
        self.types = types
        self.slots = slots
        self.draining = False
        self.free_slots = threading.BoundedSemaphore(slots)
        self._engine = engine
        self._pools = tuple(pools)
        self._busy = 0
        self._held: dict[JobRef, Held] = {}
        self._chance = Random()
        self._settle_sql = settle_statement(types.values())
        self._claims: GroupCommit[tuple[JobRef, ...], tuple[Claim, ...]] = GroupCommit(
            lambda messages: claim_group(engine, name, messages),
            name="claim",
            max_group=100,
            persistent=True,
        )
        self._ledger: GroupCommit[Settlement | Presence, None] = GroupCommit(
            self._write_ledger, name="settle", persistent=True, on_refused=self._refuse
        )
        self._stop = threading.Event()
        self._pulse: threading.Thread | None = None

    def start(self) -> None:
        """Begin to send heartbeats."""
        self._pulse = threading.Thread(target=self._keep_alive, name="heartbeat", daemon=True)
        self._pulse.start()

    def claim(self, message: tuple[JobRef, ...]) -> tuple[Claim, ...]:
        """Claim the jobs of a message; waits while the state store is away."""
        claims = self._claims.submit(message)
        for claim in claims:
            job_type = self.types.get(claim.type)
            timeout = job_type.timeout_seconds if job_type else 0.0
            self._held[claim.ref] = Held(claim, timeout, threading.Event())
        return claims

    def begin(self, claim: Claim) -> threading.Event:
        """Mark the run as started; the event is set if its lease is lost."""
        held = self._held[claim.ref]
        held.started = time.monotonic()
        self._busy += 1
        return held.lost

    def settle(self, claim: Claim, outcome: Outcome, run_seconds: float) -> None:
        """Write the end of the run behind; the caller goes on at once."""
        job_type = self.types.get(claim.type)
        tries = job_type.tries if job_type else POOLS[claim.pool].tries
        history = History(claim.attempt, claim.deferrals, tries)
        try:
            ending = ending_of(outcome, history, self._chance)
        except Exception as error:  # noqa: BLE001 - a job may raise with values that make no sense
            odd = Failed(FailureClass.APP_ERROR, f"{outcome!r} makes no sense: {error}"[:500])
            ending = ending_of(odd, history, self._chance)
        self._ledger.post(Settlement(claim.ref, ending, run_seconds))

    def end(self, claim: Claim) -> None:
        """The slot is free."""
        self._busy -= 1

    def drain(self) -> None:
        """Claim nothing more; what runs goes on. Also ends claims that wait for the store."""
        self.draining = True
        self._claims.close(0)

    def abandon(self, claim: Claim) -> bool:
        """Give up a claim whose lease is known to be lost; whether it was."""
        held = self._held[claim.ref]
        if held.lost.is_set():
            del self._held[claim.ref]
            return True
        return False

    def stop(self, timeout: float = 10.0) -> None:
        """Write everything that is still to be written, and leave."""
        self.drain()
        self._stop.set()
        if not self._ledger.close(timeout):
            logger.error("the last results could not be written; their leases will expire")
        try:
            leave(self._engine, self.name)
        except StateStoreError as error:
            logger.warning("could not say good-bye: %s", error)

    def _presence(self) -> Presence:
        return Presence(
            self.name, "worker", self._pools, self.slots, max(0, self._busy), self.draining
        )

    def _keep_alive(self) -> None:
        sent = self._ledger.post(self._presence())
        while not self._stop.wait(PRESENCE_SECONDS):
            if self.draining:
                self.drain()
            if sent.done:  # while the store is away, one heartbeat in line is enough
                sent = self._ledger.post(self._presence())

    def _write_ledger(self, group: Sequence[Settlement | Presence]) -> list[None]:
        """Heartbeats first: they may be repeated if what follows has to be tried again."""
        presences = [item for item in group if isinstance(item, Presence)]
        if presences:
            self._beat()
            announce(self._engine, presences[-1])
        settlements = [item for item in group if isinstance(item, Settlement)]
        if settlements:
            written = settle_group(self._engine, self._settle_sql, settlements)
            for settlement, ours in zip(settlements, written, strict=True):
                self._held.pop(settlement.ref, None)
                if not ours:
                    logger.warning(
                        "lease %d of job %s was lost; its %s is refused",
                        settlement.ref.lease,
                        settlement.ref.id,
                        settlement.ending.status,
                    )
        return [None] * len(group)

    def _beat(self) -> None:
        now = time.monotonic()
        due = [held for held in list(self._held.values()) if held.due(now)]
        kept = beat(self._engine, [held.claim.ref for held in due])
        for held in due:
            if held.claim.ref in kept:
                held.beaten = now
            elif held.claim.ref in self._held:
                held.lost.set()

    def _refuse(self, item: Settlement | Presence, error: Exception) -> None:
        """The database will not take this ending (say, a result with a NUL): the job is dead."""
        if not isinstance(item, Settlement):
            return
        if item.ending.status is JobStatus.DEAD:
            self._held.pop(item.ref, None)  # let its lease run out; nothing more can be said
            return
        # Not the whole text: SQLAlchemy's holds the statement.
        reason = str(getattr(error, "orig", error)).partition("\n")[0]
        message = f"The result could not be stored: {reason}".replace("\x00", "")[:500]
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
