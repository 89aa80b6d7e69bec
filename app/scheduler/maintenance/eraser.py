"""Eraser: finishes erasures of applications that ran when they were requested, or had blobs.

See :mod:`models.jobs.erase`. Each erasure is a transaction: one that meets a row which somebody has
locked is put off and holds up no other. Blobs are deleted after the rows that named them; their
names stay with the erasure until they are.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

from sqlalchemy import Engine, Row

from app.scheduler.maintenance.blob_deletes import BlobDeletes
from app.scheduler.role import RoleQueries
from models.blobs import BlobStore
from models.jobs.erase import (
    FORGET_COPY,
    POSTPONE,
    PREPARED_DUE,
    continue_erasure,
    note_deleted,
)
from models.leadership import Leader
from models.store.errors import StatementTooSlow, StateStoreError
from models.store.session import execute

logger = logging.getLogger(__name__)

ERASE_SECONDS = 1.0
#: … and after a turn that found none.
ERASE_IDLE_SECONDS = 5.0
#: A turn ends after so long, and what it has not looked at stays due: others need the thread.
TURN_SECONDS = 1.0
#: Pause until an erasure that cannot be finished yet is tried again.
PAUSE_SECONDS = 5.0
#: The same while another cell is away: asking it takes time that others need.
AWAY_SECONDS = 60.0


class Eraser(RoleQueries):
    def __init__(self, engine: Engine, leader: Leader, blobs: BlobStore) -> None:
        super().__init__(engine, leader)
        self._deletes = BlobDeletes(blobs)
        #: The databases of other cells, which may have copies of idempotency keys.
        self.others: Callable[[], Sequence[Engine]] = tuple
        #: When a tenant with erasures that are due had its last turn.
        self._turns: dict[int, float] = {}

    def run_once(self, now: float) -> int:
        """Look at the erasures that are due, as long as there is time; how many."""
        found = self._read(PREPARED_DUE)
        turns = {row.tenant_id: self._turns.get(row.tenant_id, -math.inf) for row in found}
        # Turns that end early begin with another tenant each.
        due = sorted(found, key=lambda row: (row.place, turns[row.tenant_id]))
        began, done = time.monotonic(), 0
        for row in due:
            self._look_at(row)
            turns[row.tenant_id] = now
            done += 1
            if time.monotonic() - began > TURN_SECONDS:
                break
        self._turns = turns
        self._forget_copies(due[:done])
        return done

    def _look_at(self, row: Row[Any]) -> None:
        try:
            state = continue_erasure(self._engine, row.id, PAUSE_SECONDS)
        except StatementTooSlow:
            self._write(POSTPONE, id=row.id, pause=PAUSE_SECONDS)
            return
        if state is not None and state.blobs:
            deleted = self._deletes.delete(state.blobs)
            note_deleted(self._engine, row.id, deleted, PAUSE_SECONDS)

    def _forget_copies(self, due: Sequence[Row[Any]]) -> None:
        try:
            for engine in self.others() if due else ():
                for row in due:
                    asked = {"id": row.id, "tenant_id": row.tenant_id}
                    execute(engine, FORGET_COPY, asked)
        except StateStoreError as error:
            logger.warning("digests of erased applications are left in other cells: %s", error)
            for row in due:
                self._write(POSTPONE, id=row.id, pause=AWAY_SECONDS)
