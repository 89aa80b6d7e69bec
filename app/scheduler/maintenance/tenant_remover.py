"""TenantRemover: removes tenants that were deleted, a bounded batch at a time.

See :mod:`models.jobs.remove_tenant`. Any leader goes on where the last one was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from sqlalchemy import Engine

from app.scheduler.maintenance.blob_deletes import BlobDeletes
from app.scheduler.role import RoleQueries
from models.blobs import BlobStore
from models.jobs.remove_tenant import (
    FIND_DELETED,
    REMOVE_JOBS,
    REMOVE_ROWS,
    REMOVE_SCORED,
    STOP_JOBS,
)
from models.leadership import Leader
from models.tenant_removal import remove_tenant

logger = logging.getLogger(__name__)

#: Pause after a turn that found nothing to remove.
REMOVE_SECONDS = 5.0


class TenantRemover(RoleQueries):
    def __init__(self, engine: Engine, leader: Leader, blobs: BlobStore) -> None:
        super().__init__(engine, leader)
        self._deletes = BlobDeletes(blobs)
        #: Called with the name of a tenant that is removed here.
        self.on_removed: Callable[[str], None] = lambda tenant: None

    def run_once(self, now: float) -> int:
        """One batch of each kind of row, of the tenant that was deleted first; how many."""
        deleted = self._read(FIND_DELETED)
        if not deleted:
            return 0
        tenant_id = deleted[0].id
        removed = self._write(STOP_JOBS, tenant=tenant_id) + self._remove_jobs(tenant_id)
        for statement in (REMOVE_SCORED, *REMOVE_ROWS):
            removed += self._write(statement, tenant=tenant_id)
        if not removed and remove_tenant(self._engine, tenant_id):
            logger.info("the tenant %s is removed", deleted[0].name)
            self.on_removed(deleted[0].name)
        return removed

    def _remove_jobs(self, tenant_id: int) -> int:
        [batch] = self._read(REMOVE_JOBS, tenant=tenant_id)
        self._deletes.delete(batch.blobs)  # the collector finds the others
        return int(batch.removed)
