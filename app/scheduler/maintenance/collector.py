"""Collector: deletes blobs that no row references once they are an hour old.

They are left by requests that failed after their payload was stored, by workers that died between
two checkpoints, and by the Retirer if it died or the store was unavailable. A blob of a job that
has not ended is never touched: a run may be about to reference it. Works in batches, in the store's
own order; a full pass, then a pause. Keys of others are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice

from sqlalchemy import Engine

from app.scheduler.role import RoleQueries
from models.blobs import BlobError, BlobStore, job_of
from models.leadership import STILL_LEADER, Leader

logger = logging.getLogger(__name__)

BATCH = 200
OLD_SECONDS = 3600.0
#: Pause between two passes.
PASS_SECONDS = 300.0

FIND_ORPHANS = f"""
    SELECT blob.key
    FROM unnest(%(keys)s::text[], %(jobs)s::uuid[]) AS blob (key, job_id)
    WHERE NOT EXISTS (
            SELECT 1 FROM jobs AS job WHERE job.id = blob.job_id
              AND (job.payload_blob = blob.key
                   OR job.status::text IN ('scheduled', 'queued', 'dispatched', 'running')))
      AND NOT EXISTS (
            SELECT 1 FROM checkpoints AS checkpoint
            WHERE checkpoint.job_id = blob.job_id AND checkpoint.blob = blob.key)
      AND {STILL_LEADER}
"""


class Collector(RoleQueries):
    def __init__(
        self, engine: Engine, leader: Leader, blobs: BlobStore, old_seconds: float = OLD_SECONDS
    ) -> None:
        super().__init__(engine, leader)
        self._blobs = blobs
        self._old_seconds = old_seconds
        self._listing: Iterator[str] | None = None
        self._pass_due = 0.0
        self._logged = False

    def run_once(self, now: float) -> int:
        """Check one batch of keys; how many."""
        if now < self._pass_due:
            return 0
        if self._listing is None:
            self._listing = iter(self._blobs.list(self._old_seconds))
        try:
            keys = list(islice(self._listing, BATCH))
            self._collect(keys)
        except BlobError as error:
            # Logged once: a deployment without large payloads may have no store at all.
            if not self._logged:
                logger.warning("the blob store cannot be swept: %s", error)
            self._logged = True
            keys = []
        if len(keys) < BATCH:
            self._listing = None
            self._pass_due = now + PASS_SECONDS
        return len(keys)

    def _collect(self, keys: list[str]) -> None:
        ours = {key: job_id for key in keys if (job_id := job_of(key)) is not None}
        if not ours:
            return
        orphans = self._read(FIND_ORPHANS, keys=list(ours), jobs=list(ours.values()))
        for row in orphans:
            self._blobs.delete(row.key)
        self._logged = False
        if orphans:
            logger.info("deleted %d blobs that no row references", len(orphans))
