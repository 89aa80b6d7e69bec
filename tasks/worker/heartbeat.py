"""The heartbeat of a worker process: renews its leases and its presence, reads rules and cancels.

Every two seconds it goes through the ledger like any other entry, so that it needs no connection.
Guarantees: a claim is renewed until its ending is written or its lease is lost.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from sqlalchemy import Engine

from models.jobs.heartbeat import beat, read_cancelled, report
from models.presence import PRESENCE_SECONDS, Presence, announce, leave
from models.store.errors import StateStoreUnavailable
from models.tallies import Tallies
from tasks.worker.quotas import QuotaTracker
from tasks.worker.rules import Rules, read_rules
from tasks.worker.slots import Host, Slots

if TYPE_CHECKING:
    from tasks.worker.ledger import Ledger


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
    _introduced: bool = False
    _pulse: threading.Thread | None = None

    def start(self, ledger: Ledger) -> None:
        """Begin to send heartbeats through ``ledger``."""
        self._pulse = threading.Thread(
            target=self._keep_alive, args=(ledger,), name="heartbeat", daemon=True
        )
        self._pulse.start()

    def stop(self) -> None:
        self._stop.set()

    def _keep_alive(self, ledger: Ledger) -> None:
        try:
            sent = ledger.post_beat()
            while not self._stop.wait(PRESENCE_SECONDS):
                if self._slots.drains():
                    self._slots.drain()
                    self._release_waiting(ledger)
                if sent.done:  # while the store is down, one pending is enough
                    sent = ledger.post_beat()
        except StateStoreUnavailable:
            pass  # the ledger was closed: the worker stops

    def _release_waiting(self, ledger: Ledger) -> None:
        """Hand back what waits for a slot: none may become free before the process ends."""
        for held in self._slots.held():
            if held.started is None and not held.lost:
                held.lost = True
                ledger.release(held.claim)

    def beat_if_late(self) -> None:
        """Beat now if the regular one is stuck behind statements that are slow or keep failing."""
        late = time.monotonic() - self._beaten >= PRESENCE_SECONDS
        if late and self._pulse is not None and not self._stop.is_set():
            self.beat()

    def beat(self) -> None:
        """Renew the leases and the presence; exchange counts and progress for rules and cancels."""
        self._renew_leases()
        if not self._introduced:
            # A process that had this name before is gone; its drain request is not for us.
            leave(self._engine, self._slots.name)
            self._introduced = True
        if announce(self._engine, self._presence()) and not self._slots.drains():
            (self._host.retire or self._slots.drain)()
        self._exchange()
        self._beaten = time.monotonic()

    def _renew_leases(self) -> None:
        now = time.monotonic()
        due = [held for held in self._slots.held() if held.due(now)]
        kept = beat(self._engine, [held.claim.ref for held in due])
        for held in due:
            if held.claim.ref in kept:
                held.beaten = now
            elif self._slots.find(held.claim.ref) is not None:
                held.lost = True

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
        )

    def _exchange(self) -> None:
        self._tallies.write(self._engine)
        self.rules = read_rules(self._engine)
        self._quotas.refresh(self.rules.quotas, time.monotonic())
        self._report()
        for ref in read_cancelled(self._engine, self._slots.name):
            known = self._slots.find(ref)
            if known is not None and known.cancelled is None:
                known.cancelled = time.monotonic()

    def _report(self) -> None:
        behind = [held for held in self._slots.held() if not held.progress_written]
        for held in behind:
            held.progress_written = True  # first: a later report is to be written again
        try:
            report(self._engine, [(held.claim.ref, held.progress or "null") for held in behind])
        except BaseException:
            for held in behind:
                held.progress_written = False
            raise
