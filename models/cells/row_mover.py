"""Copies and moves the rows of one tenant between the cells of its move, a batch at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import AbstractContextManager

from sqlalchemy import Connection, Engine

from models.cells import moves
from models.cells.away import set_away
from models.cells.databases import CellDatabases
from models.cells.fences import fenced
from models.cells.moved_rows import (
    JOB_TABLES,
    MOVED,
    MovedTable,
    any_row,
    put_sums,
    put_tallies,
    remove_batch,
    remove_last_rows,
    take_rows,
    take_sums,
    take_tallies,
)
from models.cells.moves import Move
from models.cells.tenant_rows import (
    CannotMove,
    read_idempotency_keys,
    read_own_rows,
    require_tenant,
    write_idempotency_keys,
    write_own_rows,
)
from models.jobs.transfer import count_left, put_jobs, take_jobs
from models.pools import POOLS
from models.store.row_copies import TextRow
from models.wakeups import wake_scheduler


class RowMover:
    """Works until ``until``, by the monotonic clock, as the runner with the move's fence."""

    def __init__(self, databases: CellDatabases, move: Move) -> None:
        self.move = move
        self.tenant_id = 0
        self.until = 0.0
        self._databases = databases
        #: Of a step, between two cells: the last idempotency key that was copied; None: all were.
        self._keys: dict[tuple[str, str, str], str | None] = {}

    def engine(self, cell: str) -> Engine:
        """The database of a cell."""
        return self._databases.engine(cell)

    def within(self, cell: str) -> AbstractContextManager[Connection]:
        """A transaction of this runner in a cell."""
        return fenced(self.engine(cell), self.move.tenant, self.move.fence)

    def copy_own_rows(self, source: str, cells: Iterable[str], version: int) -> None:
        """Let new cells have the tenant's terms, limits and keys; they admit nothing."""
        rows = read_own_rows(self.engine(source), self.tenant_id)
        for cell in cells:
            with self.within(cell) as connection:
                # Away from the first moment on.
                set_away(connection, self.tenant_id, version, away=True)
                write_own_rows(connection, rows, share=self.move.share(cell))

    def copy_later_changes(self, source: str, cells: Iterable[str]) -> None:
        """Let cells that the tenant lives in have what was changed in another one alone."""
        rows = read_own_rows(self.engine(source), self.tenant_id)
        for cell in cells if rows["tenants"] else ():
            with self.within(cell) as connection:
                write_own_rows(connection, rows, newer=True)

    def copy_keys(self, source: str, target: str, since: str | None = None) -> bool:
        """Copy idempotency keys, those since a time; whether all were."""
        pair = (self.move.step, source, target)
        after = self._keys.get(pair, "")
        while after is not None:
            if time.monotonic() > self.until:
                return False
            rows = read_idempotency_keys(self.engine(source), self.tenant_id, after, since)
            with self.within(target) as connection:
                write_idempotency_keys(connection, rows)
            after = self._keys[pair] = str(rows[-1]["key"]) if rows else None
        return True

    def move_tallies(self, source: str, target: str) -> None:
        """Move what was counted by tenant, once."""
        with self.within(source) as here:
            tallies = take_tallies(here, self.tenant_id)
            with self.within(target) as there:
                put_tallies(there, tallies, self.move.marks(source))

    def move_sums(self, source: str, target: str) -> None:
        """Move what was used, refused and ended, once: when no job is left in the source."""
        with self.within(source) as here:
            sums = take_sums(here, self.tenant_id)
            with self.within(target) as there:
                require_tenant(there, self.tenant_id)
                put_sums(there, sums, self.move.marks(source))

    def empty(self, source: str) -> bool:
        """Transfer what can go; whether nothing is left."""
        while time.monotonic() < self.until:
            moved = self._move_jobs(source)
            if moved:
                moves.renew(self._databases.registry, self.move, transferred=moved)
            elif not sum(self.move_rows(source, each) for each in MOVED):
                break
        with self.within(source) as connection:
            return self._is_empty(connection)

    def _is_empty(self, connection: Connection) -> bool:
        left = count_left(connection, self.tenant_id)
        return not left.jobs and not any_row(connection, self.tenant_id)

    def _move_jobs(self, source: str) -> int:
        with self.within(source) as here:
            rows = take_jobs(here, self.tenant_id, list(POOLS), JOB_TABLES)
            ids: dict[str, set[str]] = {}
            for job in rows.jobs:
                job_id = str(job["id"])
                ids.setdefault(self.move.target(job_id), set()).add(job_id)
            for target, some in ids.items():
                with self.within(target) as there:
                    require_tenant(there, self.tenant_id)
                    put_jobs(there, rows.of(some, JOB_TABLES), JOB_TABLES)
            # All of them are committed there; what follows commits here.
        for target in ids:
            wake_scheduler(self.engine(target))
        return len(rows.jobs)

    def move_rows(self, source: str, moved: MovedTable) -> int:
        """Move the next rows of a table that can go; how many."""
        targets: dict[str, list[TextRow]] = {}
        with self.within(source) as here:
            if moved.after_jobs:
                left = count_left(here, self.tenant_id)
                if left.jobs > left.in_flight:
                    return 0
            rows = take_rows(here, moved, self.tenant_id)
            for row in rows:
                target = self.move.first if moved.one_cell else self.move.target(str(row["id"]))
                targets.setdefault(target, []).append(row)
            for target, some in targets.items():
                with self.within(target) as there:
                    require_tenant(there, self.tenant_id)
                    moved.put(there, some, self.move.marks(source))
        if moved.forget is not None:
            for target, some in targets.items():
                with self.within(target) as there:
                    moved.forget(there, some, self.move.marks(source))
        return len(rows)

    def remove(self, cell: str) -> bool:
        """Remove the tenant from a cell that it left, or did not come to; whether it is gone."""
        while time.monotonic() < self.until:
            with self.within(cell) as connection:
                if not self._is_empty(connection):
                    raise CannotMove(f"the cell {cell} has jobs or other rows of the tenant")
                if not remove_batch(connection, self.tenant_id):
                    return remove_last_rows(connection, self.tenant_id)
        return False
