"""Moved types: where new jobs go if not where the author said.

A type that was declared anew, or whose new pool is none of ``served``, goes where its author
said, without waiting for the Classifier to notice.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

from sqlalchemy import Connection

from models.jobs.submission import Submission
from models.pools import POOLS

READ_MOVED = "SELECT type, declared_pool, pool FROM job_types WHERE pool <> declared_pool"

#: By type and declared pool.
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
