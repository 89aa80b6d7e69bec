"""Generations of the feed.

Entries are numbered by their transactions. A restore starts these numbers lower and a promotion
uses some again, so each begins a *generation*: numbers continue above all existing ones, and a
position names its generation. See docs/decisions/0022-feed-positions.md.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from sqlalchemy import Connection

#: A standby cannot know; it has what its primary had.
READ = """
    SELECT tag, shift, first_xid::text::bigint AS first,
           coalesce(identity = feed_identity(), true) AS current
    FROM feed_generations ORDER BY number
"""
BEGIN = "SELECT begin_feed_generation()"


class FeedGeneration(NamedTuple):
    """A history of transaction numbers."""

    #: Random; empty for the first, whose positions have none.
    tag: str
    #: What is added to a transaction's number.
    shift: int
    #: The lowest number that it may have given to an entry.
    first: int


def read_generations(connection: Connection) -> Sequence[FeedGeneration]:
    """All of them, the current one last; begins one if the history is not the one that is known.

    While this connection lasts that cannot happen again.
    """
    rows = connection.exec_driver_sql(READ).all()
    if not rows[-1].current:
        connection.exec_driver_sql(BEGIN)
        rows = connection.exec_driver_sql(READ).all()
    return [FeedGeneration(row.tag, row.shift, row.first) for row in rows]
