"""Ledger: the group commit through which a worker process writes about its jobs.

Endings, checkpoints and heartbeats share one connection at any concurrency. Endings of types with
projections have groups of their own, which take turns with the others; a slow one, say because its
table is locked, is not waited for. Guarantees: a lost lease writes nothing; a dependency's
rejection is written before the ending of the run that met it; an ending that the database rejects,
or whose row is locked, costs no other job its result.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from random import Random

from sqlalchemy import Engine
from sqlalchemy.exc import DBAPIError, ProgrammingError

from models.jobs.checkpoint import Loaded, Loading, Saved, Saving, load_group, save_group
from models.jobs.claim import Claim
from models.jobs.locked import find_locked
from models.jobs.settle import PLAIN, Ending, Settlement, settle_group
from models.jobs.states import FailureClass, JobStatus
from models.store.errors import StateStoreUnavailable
from models.store.group_commit import GroupCommit
from models.store.ticket import Ticket
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

#: While claims wait for slots here, endings gather for so long: nobody's start depends on them, and
#: a commit costs as much as ten of them. The scheduler reckons with that: ``UNWRITTEN_SECONDS`` in
#: ``app.policy.window``.
GATHER_SECONDS = 0.1
#: How long others wait for a group with projections. Two statements at a time need two connections.
TURN_SECONDS = 0.2


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
            self._write_group,
            name="settle",
            persistent=True,
            rest=self._rest,
            on_refused=self._refuse,
            locked=self._locked,
        )
        #: Endings of types with projections.
        self._projected: GroupCommit[Settlement, Answer] = GroupCommit(
            self._write_projected,
            name="project",
            persistent=True,
            rest=self._rest,
            on_refused=self._refuse,
            locked=self._locked,
        )
        self._turn = threading.Lock()
        self._rejecting = threading.Lock()

    def settle(self, claim: Claim, outcome: Outcome, ending: Ending, run_seconds: float) -> None:
        """Write the ending of the run; returns before that."""
        job_type = self._types.get(claim.type)
        held = self._slots.find(claim.ref)
        waited = held.waited if held else None
        self._tallies.add_run(counts_of(claim, job_type, outcome, ending, run_seconds, waited))
        # Before the ending is posted: its group writes rejections first.
        self._quotas.count_run(claim, outcome, held, time.monotonic())
        settlement = settlement_of(claim, ending, run_seconds, held)
        self._post(settlement, job_type)

    def _post(self, settlement: Settlement, job_type: JobType | None) -> None:
        weight = len(settlement.ending.result or "") + len(settlement.progress or "")
        weight += settlement.logged.weight if settlement.logged else 0
        if job_type is not None and job_type.project:
            self._projected.post(settlement, weight)
        else:
            self._group.post(settlement, weight)

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
        """Request a heartbeat; when it is done, everything posted before is written, except endings
        of types with projections and what belongs to a locked row."""
        return self._group.post(Beat(), awaited=True)

    def close(self, timeout: float) -> bool:
        """Accept nothing more and write what is pending; whether all of it was written."""
        began = time.monotonic()
        written = self._group.close(timeout)
        return self._projected.close(max(0.0, began + timeout - time.monotonic())) and written

    def _rest(self) -> float:
        return GATHER_SECONDS if self._slots.any_waiting() else 0.0

    def _locked(self, group: Sequence[Entry]) -> list[bool]:
        """Whose row somebody has locked."""
        ids = [item.ref.id if isinstance(item, Settlement | Saving) else None for item in group]
        locked = find_locked(self._engine, {job_id for job_id in ids if job_id is not None})
        return [job_id in locked for job_id in ids]

    def _write_group(self, group: Sequence[Entry]) -> list[Answer]:
        with self._in_turn(TURN_SECONDS):
            return self._write(group)

    def _write_projected(self, group: Sequence[Settlement]) -> list[Answer]:
        with self._in_turn(-1):
            self._write_quotas()
            self._write_settlements(group, projected=True)
            return [None] * len(group)

    @contextmanager
    def _in_turn(self, seconds: float) -> Iterator[None]:
        """Write when the other group has written, or after so long."""
        ours = self._turn.acquire(timeout=seconds)
        try:
            yield
        except MemoryError as error:
            # A run used it up; there will be some when it has ended.
            raise StateStoreUnavailable("out of memory") from error
        finally:
            if ours:
                self._turn.release()

    def _write(self, group: Sequence[Entry]) -> list[Answer]:
        """Heartbeats first: they may be repeated if what follows has to be retried."""
        if any(isinstance(item, Beat) for item in group):
            self._heartbeat.beat()
            self.projections.check_if_due(self._engine)
        self._write_quotas()
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

    def _write_quotas(self) -> None:
        # What the other group is writing has to be there, too.
        with self._rejecting:
            if self._quotas.due(time.monotonic()):
                self._quotas.write(self._engine, time.monotonic())

    def _write_settlements(
        self, settlements: Sequence[Settlement], *, projected: bool = False
    ) -> None:
        if time.monotonic() >= self._tallies.due:
            self._tallies.write(self._engine)  # first: endings are not to be written twice
        try:
            self._settle(settlements, projected)
        except ProgrammingError as error:
            # Perhaps of a projection. If none fails, the group is split until the culprit is alone.
            if not self.projections.check(self._engine):
                # The schema is not the one of this version: results wait until it is.
                raise StateStoreUnavailable(first_line(error)) from error
            self._settle(settlements, projected)

    def _settle(self, settlements: Sequence[Settlement], projected: bool) -> None:
        statement = PLAIN
        if projected:
            # Once: another thread may be checking.
            failing = self.projections.failing
            statement = self.projections.statement_of(
                self._types_of(settlements).difference(failing)
            )
            settlements = [self._deferred(settlement, failing) for settlement in settlements]
        written = settle_group(self._engine, statement, self._slots.name, settlements)
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

    def _types_of(self, settlements: Sequence[Settlement]) -> frozenset[str]:
        held = [self._slots.find(settlement.ref) for settlement in settlements]
        known = [one.claim.type for one in held if one is not None]
        # Nobody knows whose result one is that is no longer held: all types that it could be.
        return frozenset(known if len(known) == len(held) else self._types)

    def _deferred(
        self, settlement: Settlement, failing: Mapping[str, str], error: Exception | None = None
    ) -> Settlement:
        """The settlement, without a result that its projection cannot store."""
        held = self._slots.find(settlement.ref)
        if held is None or settlement.ending.status is not JobStatus.SUCCEEDED:
            return settlement
        claim, job_type = held.claim, self._types.get(held.claim.type)
        reason = failing.get(claim.type) if error is None else first_line(error)
        if reason is None:
            return settlement
        why = deferral(claim.type, reason)
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
        if is_undefined(error) and (deferred := self._deferred(item, {}, error)) is not item:
            self._post_again(deferred)
            return
        message = f"The result could not be stored: {first_line(error)}"
        error_class = FailureClass.APP_ERROR
        ending = Ending(
            JobStatus.DEAD, tries_spent=1, error_class=error_class, error_message=message
        )
        self._post_again(
            Settlement(
                item.ref, ending, item.run_seconds, logged=item.logged, tenant_id=item.tenant_id
            )
        )

    def _settle_without_projections(self, item: Settlement) -> bool:
        """For an ending without a result, which its projection rejects; whether that helped."""
        try:
            settle_group(self._engine, PLAIN, self._slots.name, [item])
            self._slots.forget(item.ref)
        except StateStoreUnavailable:
            self._post_again(item)
        except DBAPIError:
            return False
        return True

    def _post_again(self, item: Settlement) -> None:
        held = self._slots.find(item.ref)
        job_type = self._types.get(held.claim.type) if held is not None else None
        try:
            self._post(item, job_type)
        except StateStoreUnavailable:
            self._slots.forget(item.ref)  # the worker stops; the lease will expire
