"""Begins a generation of the feed soon after a restore or a promotion, also if nobody listens.

See :mod:`models.feed`.
"""

from __future__ import annotations

from sqlalchemy import Engine

from models.feed import BEGIN, FINISH, READ
from models.store.prepared import PreparedStatement
from models.store.session import connect
from models.store.writers import read_writers

PREPARED = PreparedStatement("read_generations", READ)


class FeedGenerations:
    """Begins a generation, and finishes it.

    Transactions that were open as it began may number entries as before. When they have ended,
    these entries are renumbered. Dying in between loses nothing: the next leader finishes it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Those transactions; None: not looked for yet.
        self._writers: frozenset[str] | None = None

    def run_once(self, now: float) -> int:
        with connect(self._engine) as connection:
            last = PREPARED.execute(connection, {}).all()[-1]
            if not last.current:
                connection.exec_driver_sql(BEGIN)
                self._writers = None
            elif not last.unfinished:
                return 0
            writers = read_writers(connection, "jobs", "events")
            if self._writers is None:
                self._writers = writers
            if not self._writers & writers:
                connection.exec_driver_sql(FINISH)
                self._writers = None
        return 0
