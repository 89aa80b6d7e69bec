"""Ledger: the group commit through which a worker process writes about its jobs.

Endings, checkpoints and heartbeats share one connection at any concurrency. Guarantees: a lost
lease writes nothing; a dependency's rejection is written before the ending of the run that met it;
an ending that the database rejects costs no other job its result.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, ProgrammingError

from models.jobs.checkpoint import Loaded, Loading, Saved, Saving, load_group, save_group
from models.jobs.claim import Claim
from models.jobs.settle import Ending, Settlement, settle_group, settle_statement
from models.jobs.states import FailureClass, JobStatus
from models.store.errors import StateStoreUnavailable
from models.store.group_commit import GroupCommit, Ticket
from models.tenant_tallies import RunTallies
from tasks.registry import JobType
from tasks.retry.decision import GOOD_STANDING
from tasks.worker.decide import close_run, counts_of, settlement_of
from tasks.worker.heartbeat import Heartbeat
from tasks.worker.outcome import Outcome, Released
from tasks.worker.projections import Projections, deferral, first_line, is_undefined
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
    _tallies: RunTallies
    _quotas: QuotaTracker

    def __post_init__(self) -> None:
        self.projections = Projections(self._types)
        self._group: GroupCommit[Entry, Answer] = GroupCommit(
            self._write_group, name="settle", persistent=True, on_refused=self._refuse
        )

    def settle(self, claim: Claim, outcome: Outcome, ending: Ending, run_seconds: float) -> None:
        """Write the ending of the run; returns before that."""
        job_type = self._types.get(claim.type)
        held = self._slots.find(claim.ref)
        waited = held.waited if held else None
        self._tallies.add_run(counts_of(claim, job_type, outcome, ending, run_seconds, waited))
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
            self.projections.check_if_due(self._engine)
        if self._quotas.due(time.monotonic()):
            self._quotas.write(self._engine, time.monotonic())
        answers: dict[Entry, Answer] = {}
        if savings := [item for item in group if isinstance(item, Saving)]:
            self._heartbeat.beat_if_late()
            answers.update(
                zip(savings, save_group(self._engine, self._slots.name, savings), strict=True)
            )
        if loadings := [item for item in group if isinstance(item, Loading)]:
            self._heartbeat.beat_if_late()
            answers.update(zip(loadings, load_group(self._engine, loadings), strict=True))
        if settlements := [item for item in group if isinstance(item, Settlement)]:
            self._heartbeat.beat_if_late()
            self._write_settlements(settlements)
        return [answers.get(item) for item in group] if answers else [None] * len(group)

    def _write_settlements(self, settlements: Sequence[Settlement]) -> None:
        try:
            self._settle(settlements)
        except ProgrammingError as error:
            # Perhaps of a projection. If none fails, the group is split until the culprit is alone.
            if not self.projections.check(self._engine):
                # The schema is not the one of this version: results wait until it is.
                raise StateStoreUnavailable(first_line(error)) from error
            self._settle(settlements)

    def _settle(self, settlements: Sequence[Settlement]) -> None:
        if self.projections.failing:
            settlements = [self._deferred(settlement) for settlement in settlements]
        written = settle_group(
            self._engine, self.projections.statement, self._slots.name, settlements
        )
        for settlement, ours in zip(settlements, written, strict=True):
            held = self._slots.forget(settlement.ref)
            if ours and held is not None:
                note_settled(held.claim, settlement, held.waited)
            if not ours:
                logger.warning(
                    "lease %d of job %s was lost; its ending %s was rejected",
                    settlement.ref.lease,
                    settlement.ref.id,
                    settlement.ending.status,
                )

    def _deferred(self, settlement: Settlement, error: Exception | None = None) -> Settlement:
        """The settlement, without a result that its projection cannot store."""
        held = self._slots.find(settlement.ref)
        if held is None or settlement.ending.status is not JobStatus.SUCCEEDED:
            return settlement
        claim, job_type = held.claim, self._types.get(held.claim.type)
        why = self.projections.deferral_of(claim.type)
        if error is not None:
            why = deferral(claim.type, first_line(error))
        if why is None:
            return settlement
        _, ending = close_run(claim, why, job_type, GOOD_STANDING, Random())
        return settlement._replace(ending=ending)

    def _refuse(self, item: Entry, error: Exception) -> None:
        """The database rejects this ending (say, a result with a NUL): the job is dead.

        It is deferred if the error is about a name or a privilege, say in a trigger's function.
        """
        if not isinstance(item, Settlement):
            return
        if item.ending.status is not JobStatus.SUCCEEDED and self._settle_without_projections(item):
            return
        if item.ending.status is JobStatus.DEAD:
            self._slots.forget(item.ref)  # its lease will expire; nothing more can be written
            return
        if is_undefined(error) and (deferred := self._deferred(item, error)) is not item:
            self._post_again(deferred)
            return
        message = f"The result could not be stored: {first_line(error)}"
        error_class = FailureClass.APP_ERROR
        ending = Ending(
            JobStatus.DEAD, tries_spent=1, error_class=error_class, error_message=message
        )
        self._post_again(Settlement(item.ref, ending, item.run_seconds))

    def _settle_without_projections(self, item: Settlement) -> bool:
        """For an ending without a result, which its projection rejects; whether that helped."""
        try:
            settle_group(self._engine, settle_statement(()), self._slots.name, [item])
            self._slots.forget(item.ref)
        except StateStoreUnavailable:
            self._post_again(item)
        except DBAPIError:
            return False
        return True

    def _post_again(self, item: Settlement) -> None:
        try:
            self._group.post(item)
        except StateStoreUnavailable:
            self._slots.forget(item.ref)  # the worker stops; the lease will expire
