"""A process that runs moves and kills itself with SIGKILL at the commit that it is told.

A commit is whatever makes something visible to others: the COMMIT of a transaction, or a statement
of its own that writes. Between two of them the databases do not change, so that a kill before and
one after each of them are all that can differ.
"""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Engine, event
from sqlalchemy.dialects.postgresql.psycopg2 import PGDialect_psycopg2

from app.scheduler.maintenance.mover import Mover
from models.cells.databases import CellDatabases
from models.cells.moves import read_moves
from models.cells.registry import open_registry
from models.settings import DatabaseSettings
from models.store.roles import DatabaseRole
from tests.support.mover_processes import PROCESSES

#: Longer than a process needs, on a machine that has much else to do.
MOST_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class KillPoint:
    """A commit, counted from 1, and which side of it."""

    commit: int
    after: bool


class CommitCounter:
    """Counts the commits of this process, and kills it at the given one."""

    def __init__(self, point: KillPoint) -> None:
        self._point = point
        self.commits = 0

    def listen(self) -> None:
        """From now on, for all engines of the process."""
        commit = PGDialect_psycopg2.do_commit

        def counted(dialect: PGDialect_psycopg2, connection: Any) -> None:
            self._before()
            commit(dialect, connection)
            self._after()

        # SQLAlchemy has no event after a commit.
        PGDialect_psycopg2.do_commit = counted  # type: ignore[method-assign]
        event.listen(Engine, "before_cursor_execute", self._before_statement)
        event.listen(Engine, "after_cursor_execute", self._after_statement)

    def _before_statement(
        self, connection: Connection, _: Any, statement: str, *_more: Any
    ) -> None:
        if commits_itself(connection, statement):
            self._before()

    def _after_statement(self, connection: Connection, _: Any, statement: str, *_more: Any) -> None:
        if commits_itself(connection, statement):
            self._after()

    def _before(self) -> None:
        self.commits += 1
        if self._point == KillPoint(self.commits, after=False):
            os.kill(os.getpid(), signal.SIGKILL)

    def _after(self) -> None:
        if self._point == KillPoint(self.commits, after=True):
            os.kill(os.getpid(), signal.SIGKILL)


def commits_itself(connection: Connection, statement: str) -> bool:
    """Whether it is a statement that writes, outside of a transaction."""
    driver: Any = connection.connection.dbapi_connection
    return driver.autocommit and not statement.lstrip().upper().startswith("SELECT")


def run_moves(registry_url: str, point: KillPoint, commits: Any) -> None:
    """The process: all moves to their end, or to the commit at which it is killed."""
    counter = CommitCounter(point)
    settings = DatabaseSettings(database_url=registry_url, registry_url=registry_url)
    registry = open_registry(settings, process="killed", role=DatabaseRole.SCHEDULER)
    databases = CellDatabases(registry, settings, process="killed", role=DatabaseRole.SCHEDULER)
    mover = Mover(databases, "killed", known_seconds=0.0)
    counter.listen()
    while read_moves(registry):
        if not mover.run_once(time.monotonic()):
            time.sleep(0.05)
    commits.value = counter.commits


def run_killed(registry_url: str, point: KillPoint) -> int | None:
    """Run moves in a process; None if it died at the point, or all commits that it made without."""
    commits = PROCESSES.Value("i", 0)
    process = PROCESSES.Process(target=run_moves, args=(registry_url, point, commits))
    process.start()
    process.join(MOST_SECONDS)
    if process.is_alive():
        process.kill()
        process.join()
        raise AssertionError(f"{point}: the process hangs")
    assert process.exitcode in (0, -signal.SIGKILL), f"{point}: it ended with {process.exitcode}"
    return int(commits.value) if process.exitcode == 0 else None
