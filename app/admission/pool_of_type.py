"""Where new jobs go: into the pool in which their type was measured to belong.

A type that was declared anew, or whose new pool is not served, goes where its author said,
without waiting for the Classifier to notice.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection, Engine

from models.jobs.submission import Submission
from models.pools import POOLS
from models.store.errors import StateStoreError
from models.store.session import connect

logger = logging.getLogger(__name__)

#: The table is read at most this often.
LOOK_SECONDS = 1.0
#: How long a request waits for the read.
WAIT_SECONDS = 0.25

READ_MOVED = "SELECT type, declared_pool, pool FROM job_types WHERE pool <> declared_pool"

#: Pools by type and declared pool.
Moved = Mapping[tuple[str, str], str]


def read_moved(connection: Connection, served: Collection[str] = tuple(POOLS)) -> Moved:
    """The types that moved, and where to."""
    rows = connection.exec_driver_sql(READ_MOVED)
    return {(name, declared): pool for name, declared, pool in rows if pool in served}


def placed(submissions: Sequence[Submission], moved: Moved) -> Sequence[Submission]:
    """The submissions, those of moved types in their new pool."""
    if not moved:
        return submissions
    return [
        item._replace(pool=moved.get((item.type, item.pool), item.pool)) for item in submissions
    ]


class PoolsOfTypes:
    """The types that moved, as of a second ago, or as last known while the store is away."""

    def __init__(self, engine: Engine, served_pools: Collection[str]) -> None:
        self._engine = engine
        self._served = {name for name in served_pools if name in POOLS}
        self._moved: Moved = {}
        self._due = 0.0
        self._reading = threading.Lock()

    def place(self, submissions: Sequence[Submission]) -> Sequence[Submission]:
        """The submissions, those of moved types in their new pool."""
        if time.monotonic() >= self._due and self._reading.acquire(blocking=False):
            self._due = time.monotonic() + LOOK_SECONDS
            # Beside the request: a store that hangs is waited for only once, at admission.
            read = threading.Thread(target=self._read, name="pools of types", daemon=True)
            read.start()
            read.join(WAIT_SECONDS)
        return placed(submissions, self._moved)

    def _read(self) -> None:
        try:
            with connect(self._engine) as connection:
                self._moved = read_moved(connection, self._served)
        except StateStoreError as error:
            logger.debug("pools of job types could not be read: %s", error)
        finally:
            self._reading.release()
