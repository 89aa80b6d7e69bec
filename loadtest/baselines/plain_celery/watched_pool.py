"""SQLAlchemy's own pool, with a count of who waits for it, written to a file for the lab.

The ``checkout`` event fires after the wait, so the acquisition itself is counted. The file is
replaced whole at every change: a reader sees a state that was true. Nothing is written through
the database, whose connections are what is short.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from typing import Any

from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool
from sqlalchemy.pool.base import ConnectionPoolEntry


class WatchedPool(QueuePool):
    """A queue pool that says how it is doing in ``<folder>/<pid>.json``."""

    #: Set by `watch_in`, because SQLAlchemy makes the instances.
    folder: Path

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._counting = threading.Lock()
        self._waiting = 0
        #: Acquisitions that had to wait, and those that gave up.
        self._waited = 0
        self._timeouts = 0
        self._count()

    def _do_get(self) -> ConnectionPoolEntry:
        if self._overflow < self._max_overflow or self._pool.qsize():
            taken = super()._do_get()
            self._count()
            return taken
        self._count(waiting=1, waited=1)
        try:
            taken = super()._do_get()
        except PoolTimeout:
            self._count(waiting=-1, timeouts=1)
            raise
        except BaseException:
            self._count(waiting=-1)
            raise
        self._count(waiting=-1)
        return taken

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        super()._do_return_conn(record)
        self._count()

    def _count(self, waiting: int = 0, waited: int = 0, timeouts: int = 0) -> None:
        """Add to the counts and tell how things are."""
        with self._counting:
            self._waiting += waiting
            self._waited += waited
            self._timeouts += timeouts
            state = {
                "size": self.size() + self._max_overflow,
                "in_use": self.checkedout(),
                "waiting": self._waiting,
                "waited": self._waited,
                "timeouts": self._timeouts,
            }
            draft = self.folder / f"{os.getpid()}.draft"
            draft.write_text(json.dumps(state))
            draft.replace(draft.with_suffix(".json"))


def watch_in(folder: str) -> type[QueuePool]:
    """The pool class for a process that is watched."""
    return type("WatchedPool", (WatchedPool,), {"folder": Path(folder)})
