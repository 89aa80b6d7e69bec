"""The baseline's state: one table, and one SQLAlchemy pool per process, of 20 by default."""

from __future__ import annotations

import json
import os
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import psycopg2.extensions
import sqlalchemy as sa
from gevent.monkey import is_module_patched
from gevent.socket import wait_read, wait_write
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool
from sqlalchemy.pool.base import ConnectionPoolEntry


class WatchedPool(QueuePool):
    """A connection pool that writes its state to ``<folder>/<pid>.json``."""

    #: Set by `watch_in`, because SQLAlchemy makes the instances.
    folder: Path

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._counting = threading.Lock()
        #: Those that wait now, acquisitions that had to wait, and those that gave up.
        self._counts = Counter(waiting=0, waited=0, timeouts=0)
        self._count()

    def _do_get(self) -> ConnectionPoolEntry:
        waits = self._overflow >= self._max_overflow and not self._pool.qsize()
        if waits:
            self._count(waiting=1, waited=1)
        timeouts = 0
        try:
            return super()._do_get()
        except PoolTimeout:
            timeouts = 1
            raise
        finally:
            self._count(waiting=-waits, timeouts=timeouts)

    def _do_return_conn(self, record: ConnectionPoolEntry) -> None:
        super()._do_return_conn(record)
        self._count()

    def _count(self, **changes: int) -> None:
        """Add to the counts and write the state."""
        with self._counting:
            self._counts.update(changes)
            size = self.size() + self._max_overflow
            state = {"size": size, "in_use": self.checkedout(), **self._counts}
            draft = self.folder / f"{os.getpid()}.draft"
            draft.write_text(json.dumps(state))
            draft.replace(draft.with_suffix(".json"))


def watch_in(folder: str) -> type[QueuePool]:
    """The pool class for a process that is watched."""
    return type("WatchedPool", (WatchedPool,), {"folder": Path(folder)})


POOL_SIZE = int(os.environ.get("PLAIN_POOL_SIZE", "20"))
#: Where each process writes the state of its pool; unset, it does not.
POOL_FOLDER = os.environ.get("PLAIN_POOL_FOLDER")

metadata = sa.MetaData()
applications = sa.Table(
    "applications",
    metadata,
    sa.Column("id", sa.Uuid, primary_key=True),
    sa.Column("candidate", sa.String(200), nullable=False),
    sa.Column("role", sa.String(200), nullable=False),
    sa.Column("payload", sa.JSON, nullable=False),
    sa.Column("status", sa.Text, nullable=False, server_default="pending"),
    sa.Column(
        "created_at", sa.DateTime(timezone=True), nullable=False, server_default=sa.func.now()
    ),
    sa.Column("finished_at", sa.DateTime(timezone=True)),
)


def open_engine() -> sa.Engine:
    """The process's engine; green if the process is."""
    if is_module_patched("socket"):
        psycopg2.extensions.set_wait_callback(wait_green)
    return sa.create_engine(
        os.environ["PLAIN_DATABASE_URL"],
        poolclass=watch_in(POOL_FOLDER) if POOL_FOLDER else QueuePool,
        pool_size=POOL_SIZE,
        max_overflow=0,
    )


def wait_green(connection: psycopg2.extensions.connection) -> None:
    """What psycogreen does: let other greenlets run while the server works."""
    while (state := connection.poll()) != psycopg2.extensions.POLL_OK:
        if state == psycopg2.extensions.POLL_READ:
            wait_read(connection.fileno())
        else:
            wait_write(connection.fileno())
