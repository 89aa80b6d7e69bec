"""Generations of the feed: which history of transaction numbers this database has.

Entries of the feed are numbered by their transactions. After a restore those begin anew, lower,
and after a promotion some are used again. The database then begins a generation: numbers go on
above all that came along, and a position tells the generation that it is of. See
docs/decisions/0022-feed-positions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection, Engine

from models.store.errors import StateStoreUnavailable
from models.store.session import connect
from models.store.writers import read_writers

#: A standby cannot know; it has what its primary had.
READ = """
    SELECT tag, shift, first_xid::text::bigint AS first,
           coalesce(identity = feed_identity(), true) AS current,
           bool_or(renumber_after IS NOT NULL) OVER () AS unfinished
    FROM feed_generations ORDER BY number
"""
BEGIN = "SELECT begin_feed_generation()"
FINISH = "SELECT finish_feed_generation()"


class FeedGeneration(NamedTuple):
    """A history of transaction numbers."""

    #: Random; empty for the first, whose positions have none.
    tag: str
    #: What is added to a transaction's number.
    shift: int
    #: The lowest number that it may have given to an entry.
    first: int


def read_generations(connection: Connection) -> Sequence[FeedGeneration]:
    """All of them, the current one last.

    Fails until the leader has begun the one of this history: numbers that were told before would
    be skipped or repeated. While this connection lasts that cannot happen again.
    """
    rows = connection.exec_driver_sql(READ).all()
    if not rows[-1].current or rows[-1].unfinished:
        raise StateStoreUnavailable("feeds wait for the leader to begin a generation")
    return [FeedGeneration(row.tag, row.shift, row.first) for row in rows]


class FeedKeeper:
    """Begins a generation soon after a restore or a promotion, and finishes it.

    Transactions that were open as it began may number entries as before. When they have ended,
    these entries are renumbered. Dying in between loses nothing: the next leader finishes it.
    """

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        #: Those transactions; None: not looked for yet.
        self._writers: frozenset[str] | None = None

    def run_once(self, now: float) -> int:
        with connect(self._engine) as connection:
            last = connection.exec_driver_sql(READ).all()[-1]
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
