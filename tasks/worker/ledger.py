"""Ledger: the group commit through which a worker process writes about its jobs.

Endings, checkpoints and heartbeats share one connection at any concurrency. Guarantees: a lost
lease writes nothing; a dependency's rejection is written before the ending of the run that met it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from sqlalchemy import Engine

from models.jobs.checkpoint import Loaded, Loading, Saved, Saving, load_group, save_group
from models.jobs.claim import Claim
from models.jobs.settle import Ending, Settlement, settle_group, settle_statement
from models.jobs.states import FailureClass, JobStatus
from models.store.errors import StateStoreUnavailable
from models.store.group_commit import GroupCommit, Ticket
from models.tallies import Tallies
from tasks.registry import JobType, projections_of
from tasks.retry.decision import GOOD_STANDING
from tasks.worker.decide import close_run, counts_of, settlement_of
from tasks.worker.heartbeat import Heartbeat
from tasks.worker.outcome import Outcome, Released, plain_text
from tasks.worker.quotas import QuotaTracker
from tasks.worker.slots import Slots
from tasks.worker.tracing import note_settled

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Beat:
    """Asks for a heartbeat in the group's write."""


Entry = Settlement | Saving | Loading | Beat
Answer = Saved | Loaded | None


@dataclass(eq=False)
class Ledger:
    _engine: Engine
    _types: Mapping[str, JobType]
    _slots: Slots
    _heartbeat: Heartbeat
    _tallies: Tallies
    _quotas: QuotaTracker

    def __post_init__(self) -> None:
        self.settle_sql = settle_statement(projections_of(self._types.values()))
        self._group: GroupCommit[Entry, Answer] = GroupCommit(
            self._write_group, name="settle", persistent=True, on_refused=self._refuse
        )

    def settle(self, claim: Claim, outcome: Outcome, ending: Ending, run_seconds: float) -> None:
        """Write the ending of the run; returns before that."""
        job_type = self._types.get(claim.type)
        self._tallies.add_all(counts_of(claim, job_type, outcome, ending, run_seconds))
        held = self._slots.find(claim.ref)
        # Before the ending is posted: its group writes rejections first.
        self._quotas.count_run(claim, outcome, held, time.monotonic())
        settlement = settlement_of(claim, ending, run_seconds, held)
        self._group.post(settlement, len(ending.result or "") + len(settlement.progress or ""))

    def release(self, claim: Claim) -> None:
        """Hand back an unused claim; returns before that is written."""
        job_type = self._types.get(claim.type)
        outcome, ending = close_run(claim, Released(), job_type, GOOD_STANDING, Random())
        self.settle(claim, outcome, ending, 0.0)

    def save(self, saving: Saving) -> Saved:
        """Write a checkpoint and wait for the commit, also while the state store is down."""
        saved = self._group.submit(saving, weight=len(saving.state or ""))
        assert isinstance(saved, Saved)
        return saved

    def load(self, job_id: str) -> Loaded:
        """Read a job's checkpoint, waiting while the state store is down.

        Through the ledger, so that a run needs no connection.
        """
        loaded = self._group.submit(Loading(job_id))
        assert isinstance(loaded, Loaded)
        return loaded

    def post_beat(self) -> Ticket[Entry, Answer]:
        """Request a heartbeat; when it is done, everything posted before is written."""
        return self._group.post(Beat())

    def close(self, timeout: float) -> bool:
        """Accept nothing more and write what is pending; whether all of it was written."""
        return self._group.close(timeout)

    def _write_group(self, group: Sequence[Entry]) -> list[Answer]:
        try:
            return self._write(group)
        except MemoryError as error:
            # A run used it up; there will be some when it has ended.
            raise StateStoreUnavailable("out of memory") from error

    def _write(self, group: Sequence[Entry]) -> list[Answer]:
        """Heartbeats first: they may be repeated if what follows has to be retried."""
        if any(isinstance(item, Beat) for item in group):
            self._heartbeat.beat()
        if self._quotas.due(time.monotonic()):
            self._quotas.write(self._engine, time.monotonic())
        answers: dict[Entry, Answer] = {}
        if savings := [item for item in group if isinstance(item, Saving)]:
            self._heartbeat.beat_if_late()
            answers.update(zip(savings, save_group(self._engine, savings), strict=True))
        if loadings := [item for item in group if isinstance(item, Loading)]:
            self._heartbeat.beat_if_late()
            answers.update(zip(loadings, load_group(self._engine, loadings), strict=True))
        if settlements := [item for item in group if isinstance(item, Settlement)]:
            self._heartbeat.beat_if_late()
            self._write_settlements(settlements)
        return [answers.get(item) for item in group] if answers else [None] * len(group)

    def _write_settlements(self, settlements: Sequence[Settlement]) -> None:
        written = settle_group(self._engine, self.settle_sql, settlements)
        for settlement, ours in zip(settlements, written, strict=True):
            held = self._slots.forget(settlement.ref)
            if ours and held is not None:
                note_settled(held.claim, settlement)
            if not ours:
                logger.warning(
                    "lease %d of job %s was lost; its ending %s was rejected",
                    settlement.ref.lease,
                    settlement.ref.id,
                    settlement.ending.status,
                )

    def _refuse(self, item: Entry, error: Exception) -> None:
        """The database rejects this ending (say, a result with a NUL): the job is dead."""
        if not isinstance(item, Settlement):
            return
        if item.ending.status is JobStatus.DEAD:
            self._slots.forget(item.ref)  # its lease will expire; nothing more can be written
            return
        # Not the whole text: SQLAlchemy's holds the statement.
        reason = plain_text(getattr(error, "orig", error), 400).partition("\n")[0]
        message = f"The result could not be stored: {reason}"
        error_class = FailureClass.APP_ERROR
        ending = Ending(
            JobStatus.DEAD, tries_spent=1, error_class=error_class, error_message=message
        )
        try:
            self._group.post(Settlement(item.ref, ending, item.run_seconds))
        except StateStoreUnavailable:
            self._slots.forget(item.ref)  # the worker stops; the lease will expire
