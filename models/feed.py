"""Generations of the feed.

Entries are numbered by their transactions. A restore starts these numbers lower and a promotion
uses some again, so each begins a *generation*: numbers continue above all existing ones, and a
position names its generation. See docs/decisions/0022-feed-positions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

from models.store.errors import StateStoreUnavailable

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
