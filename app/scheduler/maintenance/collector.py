"""Collector: blobs that no row names are removed when they are an hour old.

They are left by requests that came to nothing after their payload was stored, by workers that
died between two checkpoints, and by the Retirer if it died or the store was away. A blob of a
job that has not ended is never touched: a run may be about to name it, however long the
database makes it wait.

A batch at a time, in the store's own order; a full pass, then a rest. Keys that are not ours
are left alone.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import islice

from sqlalchemy import Engine

from models.blobs import BlobError, BlobStore, job_of
from models.leadership import STILL_LEADER, Leader
from models.store.session import connect

logger = logging.getLogger(__name__)

BATCH = 200
OLD_SECONDS = 3600.0
#: Rest between two passes.
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


class Collector:
    """Removes blobs that nobody names."""

    def __init__(
        self, engine: Engine, leader: Leader, blobs: BlobStore, old_seconds: float = OLD_SECONDS
    ) -> None:
        self._engine = engine
        self._leader = leader
        self._blobs = blobs
        self._old_seconds = old_seconds
        self._listing: Iterator[str] | None = None
        self._pass_due = 0.0
        self._complained = False

    def run_once(self, now: float) -> int:
        """Look at one batch of keys; how many."""
        if now < self._pass_due:
            return 0
        if self._listing is None:
            self._listing = iter(self._blobs.list(self._old_seconds))
        try:
            keys = list(islice(self._listing, BATCH))
            self._collect(keys)
        except BlobError as error:
            # Said once: a deployment without large payloads may have no store at all.
            if not self._complained:
                logger.warning("the blob store cannot be swept: %s", error)
            self._complained = True
            keys = []
        if len(keys) < BATCH:
            self._listing = None
            self._pass_due = now + PASS_SECONDS
        return len(keys)

    def _collect(self, keys: list[str]) -> None:
        ours = {key: job_id for key in keys if (job_id := job_of(key)) is not None}
        if not ours:
            return
        with connect(self._engine) as connection:
            found = connection.exec_driver_sql(
                FIND_ORPHANS,
                {
                    "keys": list(ours),
                    "jobs": list(ours.values()),
                    "epoch": self._leader.epoch,
                },
            )
            orphans = found.scalars().all()
        for key in orphans:
            self._blobs.delete(key)
        self._complained = False
        if orphans:
            logger.info("removed %d blobs that no row names", len(orphans))
