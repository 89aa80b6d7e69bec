"""Copies and moves the rows of one tenant between the cells of its move, a batch at a time."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from contextlib import AbstractContextManager
from math import inf

from sqlalchemy import Connection, Engine

from models.cells import moves
from models.cells.away import keep_away, set_away
from models.cells.databases import CellDatabases
from models.cells.fences import fenced
from models.cells.moved_rows import (
    JOB_TABLES,
    MOVED,
    MOVED_SCHEDULES,
    MovedTable,
    any_row,
    last_jobs,
    note_copy,
    put_sums,
    put_tallies,
    read_arrival,
    remove_batch,
    remove_last_rows,
    take_rows,
    take_sums,
    take_tallies,
)
from models.cells.moves import Move
from models.cells.tenant_rows import (
    CannotMove,
    CopiedTerms,
    read_idempotency_keys,
    read_own_rows,
    require_tenant,
    write_idempotency_keys,
    write_own_rows,
)
from models.jobs.states import JobStatus
from models.jobs.transfer import count_left, find_known, put_jobs, take_jobs
from models.pools import POOLS
from models.store.row_copies import TextRow
from models.store.session import fetch
from models.wakeups import wake_scheduler

#: A copy of idempotency keys that takes so long may be made while the tenant is refused.
SHORT_SECONDS = 1.0
#: A key has the time at which its transaction began; that is a few seconds ago at most.
SINCE = "SELECT (now() - interval '10 seconds')::text AS since"
WAITING = (JobStatus.SCHEDULED, JobStatus.QUEUED)


class RowMover:
    """Works until ``until``, by the monotonic clock, as the runner with the move's fence.

    Schedules, of which a tenant has a thousand at most, are moved beyond that.
    """

    def __init__(self, databases: CellDatabases, move: Move) -> None:
        self.move = move
        self.tenant_id = 0
        #: Of the placement.
        self.version = 0
        self.until = 0.0
        self._databases = databases
        #: Of a step, between two cells: the last idempotency key that was copied; None: all were.
        self._keys: dict[tuple[str, str, str], str | None] = {}
        #: By source: when the last whole copy of keys began, by its clock; and the one under way.
        self.since: dict[str, str] = {}
        self._began: dict[str, str] = {}
        self._began_at, self._last_seconds = 0.0, inf
        #: By source: the last job that was transferred of those that do not wait.
        self._after: dict[str, str] = {}

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
                note_copy(connection, rows, self.move.marks(source))

    def copy_later_changes(
        self, source: str, cells: Iterable[str], terms: CopiedTerms = CopiedTerms.ALL
    ) -> None:
        """Let cells that the tenant lives in have what was changed in another one alone.

        Not terms that have not changed since they were copied to that cell, if they were: the marks
        of changes do not tell, as the move itself changes rows of both.
        """
        rows = read_own_rows(self.engine(source), self.tenant_id)
        for cell in cells if rows["tenants"] else ():
            with self.within(cell) as connection:
                changed = note_copy(connection, rows, self.move.marks(source))
                given = terms if changed or terms is CopiedTerms.ALL else CopiedTerms.NONE
                write_own_rows(connection, rows, terms=given, lives_here=True)

    def begin_keys(self, sources: Iterable[str]) -> None:
        """Begin a copy of the keys that were made since the last one, unless one is under way."""
        if not self._began:
            self._began = {each: fetch(self.engine(each), SINCE)[0].since for each in sources}
            self._began_at = time.monotonic()

    def end_keys(self) -> bool:
        """All were copied; whether another copy would hardly take less time than this one."""
        seconds, before = time.monotonic() - self._began_at, self._last_seconds
        self.since, self._began, self._last_seconds = self._began, {}, seconds
        self._keys.clear()
        return seconds < SHORT_SECONDS or seconds > before / 2

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
                # Named by when the tenant came there, and kept: a failover of the source may
                # bring back what was taken, and another move would add it again.
                arrival = read_arrival(here, self.tenant_id)
                put_sums(there, sums, f"sums/{self.tenant_id}/{source}/{arrival}")

    def empty(self, source: str) -> bool:
        """Transfer what can go; whether nothing is left."""
        with self.within(source) as connection:
            self._keep_away(connection, source)
        # Before the jobs, which may take hours: here they do not tick.
        while self.move_rows(source, MOVED_SCHEDULES):
            pass
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
            self._keep_away(here, source)
            behind = self._after.get(source)
            rows = take_jobs(here, self.tenant_id, list(POOLS), JOB_TABLES, behind)
            waiting = {str(job["id"]) for job in rows.jobs if job["status"] in WAITING}
            # With ``overlap: skip`` the last job is looked for in the cell of the schedule.
            last = last_jobs(here, self.tenant_id, waiting) if self._in_several else ()
            targets = self._targets(source, [str(job["id"]) for job in rows.jobs], last)
            ids: dict[str, set[str]] = {}
            for job_id, target in targets.items():
                ids.setdefault(target, set()).add(job_id)
            for target, some in ids.items():
                with self.within(target) as there:
                    require_tenant(there, self.tenant_id)
                    put_jobs(there, rows.of(some, JOB_TABLES), JOB_TABLES)
            # All of them are committed there; what follows commits here.
        if rows.last is not None:
            self._after[source] = rows.last
        elif not rows.jobs and self._after.pop(source, None) is not None:
            return self._move_jobs(source)  # once more from the beginning
        for target in ids:
            wake_scheduler(self.engine(target))
        return len(rows.jobs)

    def _keep_away(self, connection: Connection, source: str) -> None:
        if not keep_away(connection, self.tenant_id, self.version):
            raise CannotMove(f"the cell {source} knows a later placement")

    @property
    def _in_several(self) -> bool:
        return len(self.move.admitting) > 1

    def _targets(
        self, source: str, ids: Collection[str], to_first: Collection[str] = ()
    ) -> dict[str, str]:
        """The cell that each job goes to: the one that has it since a crash, else the first cell if
        it is among ``to_first``, else the one that its id draws.

        What is in ``to_first`` may have changed since the crash: a schedule is removed at any time.
        """
        targets = {
            job_id: self.move.first if job_id in to_first else self.move.target(job_id)
            for job_id in ids
        }
        if self._in_several:
            for cell in self.move.admitting.keys() - {source}:
                targets |= dict.fromkeys(find_known(self.engine(cell), ids), cell)
        return targets

    def move_rows(self, source: str, moved: MovedTable) -> int:
        """Move the next rows of a table that can go; how many."""
        targets: dict[str, list[TextRow]] = {}
        with self.within(source) as here:
            if moved.after_jobs:
                left = count_left(here, self.tenant_id)
                if left.jobs > left.in_flight:
                    return 0
            rows = take_rows(here, moved, self.tenant_id)
            ids = [str(row["id"]) for row in rows]
            jobs = self._targets(source, ids) if moved.with_job else {}
            for row_id, row in zip(ids, rows, strict=True):
                target = self.move.first if moved.one_cell else self.move.target(row_id)
                target = jobs.get(row_id, target)
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
