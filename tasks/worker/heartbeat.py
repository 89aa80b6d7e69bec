"""The heartbeat of a worker process: renews its leases and its presence, reads rules and cancels.

Every two seconds it goes through the ledger like any other entry, so that it needs no connection.
The presence first: what follows may wait for a lock on ``jobs``. Behind a statement that waits, the
watchdog keeps the presence. Guarantees: a claim is renewed until its ending is written or its lease
is lost; one that does not begin within a lease is handed back.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from models.jobs.claim import Claim, JobRef
from models.jobs.heartbeat import RunReport, beat, note_begun, read_cancelled, report
from models.jobs.run_logs import keep_logs
from models.presence import PRESENCE_LOST_SECONDS, PRESENCE_SECONDS, Presence, announce
from models.store.clock import DATABASE_CLOCK
from models.store.errors import StateStoreUnavailable
from models.tallies import Tallies
from tasks.worker.quotas import QuotaTracker
from tasks.worker.rules import Rules, read_rules
from tasks.worker.slots import Host, Slots

if TYPE_CHECKING:
    from tasks.worker.ledger import Ledger

logger = logging.getLogger(__name__)

#: A worker that has not reported for so long may count as lost soon, or already.
SILENT_SECONDS = PRESENCE_LOST_SECONDS - 1.0


def boot_seconds() -> float:
    """Seconds since the machine started, also those in which it was suspended."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@dataclass(eq=False)
class Heartbeat:
    _engine: Engine
    _slots: Slots
    _tallies: Tallies
    _quotas: QuotaTracker
    _pools: Sequence[str]
    _host: Host
    #: As of the last exchange.
    rules: Rules = field(default_factory=Rules)
    _stop: threading.Event = field(default_factory=threading.Event)
    _beaten: float = field(default_factory=time.monotonic)
    #: When the presence was last written.
    announced: float = field(default_factory=time.monotonic)
    #: The same by a clock that goes on while the machine is suspended.
    _announced_boot: float = field(default_factory=boot_seconds)
    #: What it was given before may have been lost: it had been silent for too long.
    silent_until: datetime | None = None
    #: See `models.presence`.
    _renewed_at: datetime | None = None
    _pulse: threading.Thread | None = None
    _ledger: Ledger | None = None

    def start(self, ledger: Ledger) -> None:
        """Begin to send heartbeats through ``ledger``."""
        self._ledger = ledger
        self._pulse = threading.Thread(
            target=self._keep_alive, args=(ledger,), name="heartbeat", daemon=True
        )
        self._pulse.start()

    def stop(self) -> None:
        self._stop.set()

    def _keep_alive(self, ledger: Ledger) -> None:
        sent = None
        while not self._stop.is_set():
            try:
                if self._slots.drains():
                    self._slots.drain()
                self._release_waiting(ledger)
                if sent is None or sent.done:  # while the store is down, one pending is enough
                    sent = ledger.post_beat()
            except StateStoreUnavailable:
                return  # the ledger was closed: the worker stops
            except Exception:  # say, a run has used up the memory
                logger.exception("a heartbeat could not be sent")
            self._stop.wait(PRESENCE_SECONDS)

    def _release_waiting(self, ledger: Ledger) -> None:
        """Hand back what waits for a slot that may never become free."""
        for held in self._slots.take_waiting():
            self._release(ledger, held.claim)

    def _release(self, ledger: Ledger, claim: Claim) -> None:
        """Hand back a claim that no longer waits for a slot; if that fails, its lease expires."""
        try:
            ledger.release(claim)
        except StateStoreUnavailable:
            raise
        except Exception:
            logger.exception("job %s could not be handed back", claim.ref.id)
            self._slots.forget(claim.ref)

    def beat_if_late(self) -> None:
        """Renew now if the regular heartbeat is late: stuck behind slow statements, or failing."""
        late = time.monotonic() - self._beaten >= PRESENCE_SECONDS
        if late and self._pulse is not None and not self._stop.is_set():
            self._renew()

    def beat(self) -> None:
        """Renew the presence and the leases; exchange counts and progress for rules and cancels."""
        self._renew()
        self._exchange()

    def _renew(self) -> None:
        """Renew the presence and the leases, and note which runs have begun."""
        announced = announce(self._engine, self._presence())
        if announced is not None:
            self.note_announced()
            if announced.drain and not self._slots.drains():
                (self._host.retire or self._slots.drain)()
        if self._renew_leases() and announced is not None:
            self._renewed_at = announced.at
        self._note_begun()
        self._beaten = time.monotonic()

    def note_announced(self) -> None:
        """The presence was written, from here or by the watchdog."""
        if self.silent_seconds() > SILENT_SECONDS:
            self.silent_until = DATABASE_CLOCK.now()
        self.announced = time.monotonic()
        self._announced_boot = boot_seconds()
        self._host.reported()

    def silent_seconds(self) -> float:
        """How long ago the presence was last written."""
        return boot_seconds() - self._announced_boot

    def may_have_lost(self, given_at: datetime) -> bool:
        """Whether a job that was given to the worker then may be somebody else's by now."""
        before = self.silent_until is not None and given_at <= self.silent_until
        return before or self.silent_seconds() > SILENT_SECONDS

    def _renew_leases(self) -> bool:
        """Whether all leases that were due are renewed or lost; those of locked rows stay due."""
        known = [held for held in self._slots.held() if not held.lost]
        ours = beat(self._engine, self._slots.name, [held.claim.ref for held in known])
        for held in known:
            if held.claim.ref not in ours and self._slots.find(held.claim.ref) is not None:
                held.lost = True
        return all(ours.values())

    def _note_begun(self) -> None:
        """Tell the rows of claims that had to wait which of them have begun."""
        now = time.monotonic()
        begun = [held for held in self._slots.held() if held.start_unrecorded and held.running]
        noted = note_begun(
            self._engine, self._slots.name, [(held.claim.ref, held.ran(now)) for held in begun]
        )
        for held in begun:
            held.start_unrecorded = held.claim.ref not in noted

    def _presence(self) -> Presence:
        return Presence(
            name=self._slots.name,
            kind="worker",
            pools=self._pools,
            slots=self._slots.count,
            busy=self._slots.busy,
            draining=self._slots.draining,
            parent=self._host.parent,
            node=self._host.node,
            renewed_at=self._renewed_at,
        )

    def _exchange(self) -> None:
        self._tallies.write(self._engine)
        self.rules = read_rules(self._engine, self.rules)
        self._quotas.refresh(self.rules.quotas, time.monotonic())
        self._report()
        self._keep_logs()
        if not self._slots.held():
            return  # there is nothing to cancel
        for ref in read_cancelled(self._engine, self._slots.name):
            known = self._slots.find(ref)
            if known is not None and known.cancelled is None:
                known.cancelled = time.monotonic()
                # What waits for a slot ends now: the row knows that it is cancelled. If the
                # ledger is closed, the lease expires.
                if self._ledger is not None and self._slots.take(known.claim):
                    with suppress(StateStoreUnavailable):
                        self._release(self._ledger, known.claim)

    def _keep_logs(self) -> None:
        """Write what runs have logged so far: if they are lost, it is not."""
        now = time.monotonic()
        due = [
            (held, log, log.count)
            for held in self._slots.held()
            if not held.lost and (log := held.log) is not None and log.is_due(now, held.ran(now))
        ]
        logged = [(held.claim.ref, said) for held, _, _ in due if (said := held.logged) is not None]
        written = keep_logs(self._engine, self._slots.name, logged)
        for held, log, count in due:
            if held.claim.ref in written:
                log.note_written(count, now)

    def _report(self) -> None:
        """Write progress and tokens that the rows do not have."""
        behind = [held for held in self._slots.held() if not (held.progress_written or held.lost)]
        for held in behind:
            held.progress_written = True  # first: a later report is to be written again
        written: set[JobRef] = set()
        try:
            written = self._write_reports(
                [
                    RunReport(held.claim.ref, held.progress, held.tokens_in, held.tokens_out)
                    for held in behind
                ]
            )
        finally:
            for held in behind:
                if held.claim.ref not in written:
                    held.progress_written = False

    def _write_reports(self, reports: Sequence[RunReport]) -> set[JobRef]:
        """Runs whose reports are written, or refused by the database: those are not sent again."""
        try:
            return report(self._engine, self._slots.name, reports)
        except (StateStoreUnavailable, MemoryError):
            raise
        except Exception:
            if len(reports) > 1:
                return set[JobRef]().union(*(self._write_reports([one]) for one in reports))
            logger.exception("the progress of job %s was refused", reports[0].ref.id)
            return {reports[0].ref}
