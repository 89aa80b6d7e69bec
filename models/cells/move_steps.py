"""The steps of a tenant's move: what a runner does in the cells, one turn at a time.

Every step can be repeated, and be begun by one runner and ended by another. What is written in a
cell is fenced (`models.cells.fences`), what is written in the registry too (`models.cells.moves`).

From ``close`` on, cells that the tenant leaves admit nothing. Those that stay admit nothing with an
idempotency key from API processes that do not know the placement after ``flip``: another cell might
be asked for the same key by then. So all keys are known where they are looked for next, before
anything is admitted there.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta

from sqlalchemy import Engine

from models.cells import moves
from models.cells.away import StillAdmitting, set_away, wait_for_older_statements
from models.cells.databases import CellDatabases
from models.cells.moved_rows import MOVED_SCHEDULES, forget_marks, note_arrival
from models.cells.moves import BEFORE_FLIP, Move, MoveStep
from models.cells.placements import PlacementRow, read_placement, remove_placement
from models.cells.row_mover import RowMover
from models.cells.tenant_rows import (
    CannotMove,
    CopiedTerms,
    find_tenant,
    require_same_schema,
    set_share,
)
from models.store.session import fetch

#: A turn ends after this time; the lease of a move is longer.
TURN_SECONDS = 2.0
#: How long statements that began before a cell was closed are waited for in one turn.
WAIT_SECONDS = 6.0
#: A cell with a transaction that has been open for so long is not closed: it would be for longer.
OPEN_SECONDS = 2.0
#: API processes read placements every second: so long after a change all of them know it.
KNOWN_SECONDS = 3.0
#: A placement without a tenant that is younger may be that of one that is being created.
CREATED_SECONDS = 60.0
#: Idempotency keys that were made so long before the move began are copied again after ``close``:
#: clocks differ, and a request may have been on its way.
OVERLAP = timedelta(seconds=60)

FIND_SCHEDULE = "SELECT id FROM schedules WHERE tenant_id = %(tenant_id)s LIMIT 1"
FIND_MOVABLE = "SELECT id FROM schedules WHERE tenant_id = %(tenant_id)s AND {condition} LIMIT 1"
#: In a cell that the tenant stays in, a schedule waits so long for the job of its last tick.
LAST_JOB_SECONDS = 3600.0
READ_CLOSED = """
    SELECT tenant_id FROM away_tenants
    WHERE tenant_id = %(tenant_id)s AND (away OR version > %(version)s)
"""


class MoveRunner:
    """Makes the steps of one move. Nothing is lost with it but the place in a copy of keys."""

    def __init__(
        self, databases: CellDatabases, move: Move, *, known_seconds: float = KNOWN_SECONDS
    ) -> None:
        self.move = move
        self._known_seconds = known_seconds
        self._databases = databases
        self._registry = databases.registry
        self._rows = RowMover(databases, move)
        #: Cells that have seen the fence.
        self._entered: set[str] = set()
        self._placement = PlacementRow(move.tenant, 0, {}, move.started_at)
        self._steps: Mapping[MoveStep, Callable[[], MoveStep | None]] = {
            MoveStep.PREPARE: self._prepare,
            MoveStep.CLOSE: self._close,
            MoveStep.KEYS: self._copy_rest,
            MoveStep.FLIP: self._flip,
            MoveStep.OPEN: self._open,
            MoveStep.TRANSFER: self._transfer,
            MoveStep.DROP: self._drop,
            MoveStep.REMOVE: self._remove,
            MoveStep.UNDO: self._undo,
        }

    def renewed(self, move: Move) -> None:
        """The lease was renewed, with the same fence."""
        self.move = self._rows.move = move

    def run_once(self) -> bool:
        """Make the step, or a part of it; whether that ended the step."""
        self._rows.until = time.monotonic() + TURN_SECONDS
        placement = read_placement(self._registry, self.move.tenant)
        if placement is None:  # it was deleted, in all cells
            moves.finish(self._registry, self.move)
            return True
        self._placement = placement
        self._rows.version = placement.version
        for cell in set(self._cells) - self._entered:
            with self._rows.within(cell):
                pass  # whoever ran it before writes nothing more
            self._entered.add(cell)
        if not self._find_tenant():
            return False
        step = self._steps[self.move.step]()
        if step is not None and step is not self.move.step:
            moves.advance(self._registry, self.move, step)
        return step is not None

    @property
    def _cells(self) -> list[str]:
        """All that have, or will have, something of the tenant.

        One that it was to come to may be why the move is taken back: it is asked last, by
        ``undo`` itself.
        """
        if self.move.step is MoveStep.UNDO:
            return sorted(self._placement.weights)
        return sorted(self._placement.weights.keys() | self.move.wanted.keys())

    @property
    def _new(self) -> list[str]:
        """Cells that the tenant comes to."""
        return [cell for cell in self.move.admitting if cell not in self._placement.weights]

    @property
    def _stay(self) -> list[str]:
        """Cells that the tenant stays in, if their idempotency keys may now go to other ones."""
        now = {cell: weight for cell, weight in self._placement.weights.items() if weight > 0}
        if len(self.move.admitting) == 1 or now == self.move.admitting:
            return []
        return [cell for cell in self.move.admitting if cell in now]

    @property
    def _terms_cell(self) -> str:
        """The cell whose terms and keys are the tenant's; changes of them are made in all."""
        return min(self._placement.weights, key=self._rank)

    def _rank(self, cell: str) -> tuple[bool, bool, str]:
        """Cells in the order in which they are believed."""
        placed = self._placement.weights
        return cell not in placed, placed.get(cell, 0.0) <= 0, cell

    def _set_away(self, cell: str, version: int, *, away: bool) -> None:
        with self._rows.within(cell) as connection:
            if not set_away(connection, self._rows.tenant_id, version, away=away):
                raise CannotMove(f"the cell {cell} knows a later placement")

    def _find_tenant(self) -> bool:
        """Find the tenant's id; whether to go on: one that is being deleted is not moved."""
        found = {c: find_tenant(self._rows.engine(c), self.move.tenant) for c in self._cells}
        there = {cell: one for cell, one in found.items() if one is not None}
        if not there:  # it was deleted, or is just being created; without placement a move ends
            age = CREATED_SECONDS if self.move.step in BEFORE_FLIP else 0.0
            remove_placement(self._registry, self.move.tenant, self._placement.version, age=age)
            return False
        self._rows.tenant_id = there[min(there, key=self._rank)][0]
        others = {cell for cell, (known, _) in there.items() if known != self._rows.tenant_id}
        if others and self.move.step is not MoveStep.UNDO:
            raise CannotMove(f"another tenant of this name is in {', '.join(sorted(others))}")
        deleted = [cell for cell, (_, deleting) in there.items() if deleting]
        if not deleted or self.move.step is MoveStep.UNDO:
            return True
        if self.move.step in BEFORE_FLIP:
            moves.advance(self._registry, self.move, MoveStep.UNDO)
            return False
        # Every cell removes what it has.
        self._rows.copy_later_changes(deleted[0], [cell for cell in there if cell not in deleted])
        moves.renew(self._registry, self.move, error="the tenant is being deleted")
        return False

    # The steps: each returns the next one; its own if the registry knows already what is next, or
    # that the move has ended; None if it has to be gone on with.

    def _prepare(self) -> MoveStep | None:
        if self._is_closed:  # whoever could not close them died before they were all opened again
            self._reopen(MoveStep.PREPARE)
            return MoveStep.PREPARE
        for cell in {*self.move.admitting, *self.move.leaving} - {self._terms_cell}:
            require_same_schema(self._rows.engine(self._terms_cell), self._rows.engine(cell))
        self._copy_own_rows()
        short = False
        while not short:  # there would be much to copy while the tenant is refused
            self._rows.begin_keys(self._key_sources)
            if not self._copy_keys(self._rows.since):
                return None
            short = self._rows.end_keys()
        for cell in (*self.move.leaving, *self._stay):
            wait_for_older_statements(self._rows.engine(cell), OPEN_SECONDS)
        return MoveStep.CLOSE

    def _close(self) -> MoveStep | None:
        for cell in self.move.leaving:
            self._set_away(cell, self._placement.version + 1, away=True)
        for cell in self._stay:
            # A schedule that is in two cells after a crash must not tick in both.
            away = cell == self._terms_cell != self.move.first
            self._set_away(cell, self._placement.version + 1, away=away)
        try:
            for cell in (*self.move.leaving, *self._stay):
                wait_for_older_statements(self._rows.engine(cell), WAIT_SECONDS)
        except StillAdmitting:
            self._reopen(MoveStep.PREPARE)  # nobody is refused meanwhile
            return MoveStep.CLOSE
        return MoveStep.KEYS

    @property
    def _is_closed(self) -> bool:
        """Whether a cell that new jobs go to admits less than the placement says."""
        placed, tenant_id = self._placement, self._rows.tenant_id
        admitting = [cell for cell, weight in placed.weights.items() if weight > 0]
        return any(is_closed(self._rows.engine(cell), tenant_id, placed) for cell in admitting)

    def _reopen(self, step: MoveStep) -> None:
        """The same placement with a later version: the cells were closed to this one."""
        weights = self._placement.weights
        version = moves.place(self._registry, self.move, weights, step)
        for cell in weights:
            self._set_away(cell, version, away=weights[cell] <= 0)

    def _copy_rest(self) -> MoveStep | None:
        self._copy_own_rows()
        # Another runner may have made the first copy.
        began = (self.move.started_at - OVERLAP).isoformat()
        since = dict.fromkeys(self._key_sources, began) | self._rows.since
        return MoveStep.FLIP if self._copy_keys(since) else None

    def _flip(self) -> MoveStep | None:
        moves.place(self._registry, self.move, self.move.wanted, MoveStep.OPEN)
        return MoveStep.FLIP

    def _open(self) -> MoveStep | None:
        for source in self.move.leaving:
            # What an operator changed there while the placement changed.
            self._rows.copy_later_changes(source, self.move.admitting, CopiedTerms.CHANGED)
            self._rows.move_tallies(source, self.move.first)
        for cell in self.move.admitting:
            with self._rows.within(cell) as connection:
                set_share(connection, self._rows.tenant_id, self.move.share(cell))
                note_arrival(connection, self._rows.tenant_id, self._placement.version)
            if cell != self.move.first:
                self._give_schedules(cell)
            self._set_away(cell, self._placement.version, away=False)
        for source in self.move.leaving:
            # From now on the marks of changes tell which is later.
            self._rows.copy_later_changes(source, self.move.admitting, CopiedTerms.CHANGED)
        return MoveStep.TRANSFER

    def _give_schedules(self, cell: str) -> bool:
        """Move the schedules of another cell that admits to the first one; whether none is left.

        The cell is closed for that, and the caller opens it. A schedule that has to wait for its
        last job stays, and ticks there. The first cell may be one that was promoted, while the
        other one has been admitting.
        """
        engine, asked = self._rows.engine(cell), {"tenant_id": self._rows.tenant_id}
        moved = MOVED_SCHEDULES
        if self.move.age_seconds > LAST_JOB_SECONDS:
            moved = moved._replace(condition="true")
        if fetch(engine, FIND_MOVABLE.format(condition=moved.condition), asked):
            # The cell is not closed in vain: the first one is there.
            fetch(self._rows.engine(self.move.first), FIND_SCHEDULE, asked)
            # After a crash they are in both, and must not tick in both.
            self._set_away(cell, self._placement.version, away=True)
            while self._rows.move_rows(cell, moved):
                pass
        return not fetch(engine, FIND_SCHEDULE, asked)

    def _bring_schedules(self) -> bool:
        """Move all schedules to the first cell; whether they are there."""
        given = True
        for cell in self.move.admitting.keys() - {self.move.first}:
            given = self._give_schedules(cell) and given
            if is_closed(self._rows.engine(cell), self._rows.tenant_id, self._placement):
                self._set_away(cell, self._placement.version, away=False)
        return given

    def _transfer(self) -> MoveStep | None:
        if self.move.age_seconds < self._known_seconds / 2:
            return None  # jobs are still read where they were by those who do not know
        emptied = [self._rows.empty(source) for source in self.move.leaving]
        return MoveStep.DROP if self._bring_schedules() and all(emptied) else None

    def _drop(self) -> MoveStep | None:
        for source in self.move.leaving:
            self._rows.move_sums(source, self.move.first)
        if not self.move.leaving:
            return MoveStep.REMOVE
        moves.place(self._registry, self.move, self.move.admitting, MoveStep.REMOVE)
        return MoveStep.DROP

    def _remove(self) -> MoveStep | None:
        if self.move.leaving and self.move.age_seconds < self._known_seconds:
            return None  # the cells are still read by those who do not know
        for source in self.move.leaving:
            # By those who did not know the placement yet.
            self._rows.copy_later_changes(source, self.move.admitting, CopiedTerms.LATER)
            if not (self._rows.empty(source) and self._rows.remove(source)):
                return None
        self._forget_marks(self.move.admitting)
        moves.finish(self._registry, self.move)
        return MoveStep.REMOVE

    def _undo(self) -> MoveStep | None:
        if self._is_closed:
            self._reopen(MoveStep.UNDO)
        known = self._databases.cells()
        for cell in self._new:
            # One that was removed just before the move was requested never got anything.
            if cell in known and not self._rows.remove(cell):
                return None
        self._forget_marks(self.move.admitting.keys() & known)
        moves.finish(self._registry, self.move)
        return MoveStep.UNDO

    def _copy_own_rows(self) -> None:
        self._rows.copy_own_rows(self._terms_cell, self._new, self._placement.version + 1)

    @property
    def _key_sources(self) -> list[str]:
        return sorted({*self._placement.weights, *self.move.leaving})

    def _copy_keys(self, since: Mapping[str, str]) -> bool:
        """Copy idempotency keys to every cell that new jobs go to; whether all were."""
        return all(
            self._rows.copy_keys(source, target, since.get(source))
            for source in self._key_sources
            for target in self.move.admitting
            if target != source
        )

    def _forget_marks(self, cells: Iterable[str]) -> None:
        for cell in cells:
            forgotten = True
            while forgotten:
                with self._rows.within(cell) as connection:
                    forgotten = forget_marks(connection, f"moved/{self.move.tenant}/")


def is_closed(engine: Engine, tenant_id: int, placement: PlacementRow) -> bool:
    """Whether a cell admits less for a tenant than its placement says."""
    asked = {"tenant_id": tenant_id, "version": placement.version}
    return bool(fetch(engine, READ_CLOSED, asked))
