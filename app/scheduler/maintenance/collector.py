"""Collector: deletes blobs that no row references once they are an hour old, and counts the others.

They are left by requests that failed after their payload was stored, by workers that died between
two checkpoints, and by the Retirer if it died or the store was unavailable. A blob of a job that
has not ended is never touched: a run may be about to reference it. Works in batches, in the store's
own order; a full pass, then a pause. Keys of others are left alone.

A full pass leaves in ``blob_counts`` what each tenant has, payloads and checkpoints, for the limit
that :mod:`app.admission.gate` keeps. One that was interrupted, or began under another lease, does
not.

Cells share a store: what this one does not reference is deleted if no other does either. While one
of them does not answer, or cannot be asked as the registry does not have it, nothing is deleted;
what tenants of this one have is counted all the same. So that no cell is forgotten, the store has
an empty blob for each, its cell mark (`cells/3`).
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from itertools import islice

from sqlalchemy import Engine
from sqlalchemy.exc import SQLAlchemyError

from app.scheduler.maintenance.blob_deletes import BlobDeletes
from app.scheduler.role import RoleQueries
from models.blobs import CELLS, BlobEntry, BlobError, BlobStore, cell_key, cell_of, job_of
from models.cells.databases import UnknownCell
from models.cells.registry import read_identity
from models.leadership import STILL_LEADER, Leader
from models.store.clock import DATABASE_CLOCK
from models.store.errors import StateStoreError
from models.store.session import fetch

logger = logging.getLogger(__name__)

BATCH = 200
OLD_SECONDS = 3600.0
#: Pause between two passes.
PASS_SECONDS = 300.0
#: Pause until a cell that did not answer is asked again: asking it takes time that others need.
AWAY_SECONDS = 60.0

FIND_UNREFERENCED = """
    SELECT blob.key, blob.job_id::text AS job_id
    FROM unnest(%(keys)s::text[], %(jobs)s::uuid[]) AS blob (key, job_id)
    WHERE NOT EXISTS (
            SELECT 1 FROM jobs AS job WHERE job.id = blob.job_id
              AND (job.payload_blob = blob.key
                   OR job.status::text IN ('scheduled', 'queued', 'dispatched', 'running')))
      AND NOT EXISTS (
            SELECT 1 FROM checkpoints AS checkpoint
            WHERE checkpoint.job_id = blob.job_id AND checkpoint.blob = blob.key)
"""
FIND_ORPHANS = f"{FIND_UNREFERENCED} AND {STILL_LEADER}"
#: Blobs of jobs that are gone belong to nobody.
COUNT_BYTES = """
    SELECT job.tenant_id, sum(blob.bytes)::bigint AS bytes
    FROM unnest(%(jobs)s::uuid[], %(bytes)s::bigint[]) AS blob (job_id, bytes)
    JOIN jobs AS job ON job.id = blob.job_id
    GROUP BY job.tenant_id
"""
#: Tenant 0, the sum, is always among them, and has the time for those that have nothing.
WRITE_COUNTS = f"""
    WITH gone AS (
        DELETE FROM blob_counts WHERE tenant_id <> ALL (%(tenants)s::bigint[]) AND {STILL_LEADER}
    )
    INSERT INTO blob_counts (tenant_id, bytes, counted_at)
    SELECT tenant_id, bytes, %(began)s
    FROM unnest(%(tenants)s::bigint[], %(bytes)s::bigint[]) AS counted (tenant_id, bytes)
    WHERE {STILL_LEADER}
    ON CONFLICT (tenant_id) DO UPDATE
    SET bytes = excluded.bytes, counted_at = excluded.counted_at
"""


class CellMissing(Exception):
    """A cell uses the store that the registry does not have."""


@dataclass(slots=True)
class BlobPass:
    """One pass through the store."""

    listing: Iterator[BlobEntry]
    epoch: int | None
    began: datetime
    #: Numbers of the cells that the store has marks of; None: not read yet.
    cells: set[int] | None = None
    #: By tenant.
    bytes: Counter[int] = field(default_factory=Counter)
    #: Whether all of it so far was counted.
    whole: bool = True


class Collector(RoleQueries):
    def __init__(
        self, engine: Engine, leader: Leader, blobs: BlobStore, old_seconds: float = OLD_SECONDS
    ) -> None:
        super().__init__(engine, leader)
        self._blobs = blobs
        self._deletes = BlobDeletes(blobs)
        self._old_seconds = old_seconds
        #: The databases of all cells of the registry by number; none: there is no registry.
        self.databases: Callable[[], Mapping[int, Engine]] = dict
        self._pass: BlobPass | None = None
        self._pass_due = 0.0
        self._ask_due = 0.0
        self._logged = False
        #: Why nothing is deleted, as it was logged.
        self._kept_because = ""

    def run_once(self, now: float) -> int:
        """Check one batch of blobs; how many."""
        if now < self._pass_due:
            return 0
        if self._pass is None:
            epoch, began = self._leader.epoch, DATABASE_CLOCK.now()
            self._pass = BlobPass(iter(self._blobs.entries()), epoch, began)
        current = self._pass
        # What is read of the listing and then not looked at, because a statement fails, is not
        # looked at in this pass.
        whole, current.whole = current.whole, False
        try:
            entries = list(islice(current.listing, BATCH))
            self._count(current, entries)
            if now >= self._ask_due:
                old = [one.key for one in entries if one.age_seconds >= self._old_seconds]
                self._collect(old, current, now)
            current.whole = whole
        except BlobError as error:
            # Logged once: a deployment without large payloads may have no store at all.
            if not self._logged:
                logger.warning("the blob store cannot be swept: %s", error)
            self._logged = True
            entries = []
        if len(entries) < BATCH:
            self._pass = None
            self._pass_due = now + PASS_SECONDS
            self._write_counts(current)
        return len(entries)

    def _count(self, current: BlobPass, entries: list[BlobEntry]) -> None:
        ours = [(job_id, one.bytes) for one in entries if (job_id := job_of(one.key)) is not None]
        if not ours:
            return
        jobs, sizes = zip(*ours, strict=True)
        for row in self._read(COUNT_BYTES, jobs=list(jobs), bytes=list(sizes)):
            current.bytes[row.tenant_id] += row.bytes

    def _write_counts(self, current: BlobPass) -> None:
        if not current.whole or current.epoch != self._leader.epoch:
            return
        counted = {0: current.bytes.total(), **current.bytes}
        tenants, sizes = list(counted), list(counted.values())
        self._write(WRITE_COUNTS, tenants=tenants, bytes=sizes, began=current.began)

    def _collect(self, keys: list[str], current: BlobPass, now: float) -> None:
        ours = {key: job_id for key in keys if (job_id := job_of(key)) is not None}
        if not ours:
            return
        found = self._read(FIND_ORPHANS, keys=list(ours), jobs=list(ours.values()))
        try:
            others = self._others(current)
            orphans = self._orphans({row.key: row.job_id for row in found}, others)
        except (StateStoreError, SQLAlchemyError, UnknownCell, CellMissing, BlobError) as error:
            self._ask_due = now + AWAY_SECONDS
            reason = str(getattr(error, "orig", error)).strip()  # not the statement with all keys
            if reason != self._kept_because:
                logger.warning("blobs that no row references are kept for now: %s", reason)
            self._kept_because = reason
            return
        self._kept_because = ""
        self._logged = False
        if deleted := self._deletes.delete(orphans):
            logger.info("deleted %d blobs that no row references", len(deleted))

    def _marked(self) -> set[int]:
        """Numbers of the cells that the store has marks of."""
        found = (cell_of(one.key) for one in self._blobs.entries(CELLS))
        return {number for number in found if number is not None}

    def _others(self, current: BlobPass) -> list[Engine]:
        """The databases of the other cells, if the registry has all that use the store.

        Each of the registry is marked in the store, also while it is away: should the registry be
        lost, or the cell be removed from it, the mark stays.
        """
        if current.cells is None:
            current.cells = self._marked()
        own, _ = read_identity(self._engine)
        databases = self.databases()
        for number in databases.keys() - current.cells:
            self._blobs.put(cell_key(number), b"")
            current.cells.add(number)
        known = {0, *databases}  # 0: this database is no cell's
        if {own, *current.cells} - known:
            current.cells = self._marked()  # one may have been removed since
        if missing := {own, *current.cells} - known:
            names = ", ".join(map(str, sorted(missing)))
            raise CellMissing(f"no registry names the cell {names} (docs/cells.md#blobs)")
        return [engine for number, engine in databases.items() if number != own]

    def _orphans(self, ours: dict[str, str], others: list[Engine]) -> dict[str, str]:
        """Of those without a reference here, those that no other cell references; by key.

        Looked for twice: a job may go to a cell that was asked before, from one that is asked next.
        """
        for engine in (*others, self._engine, *others) if ours and others else ():
            asked = {"keys": list(ours), "jobs": list(ours.values())}
            ours = {row.key: row.job_id for row in fetch(engine, FIND_UNREFERENCED, asked)}
        return ours
