"""Tallies: what a worker counted, added to the table every two seconds.

The policies of failure need rates, not ledgers: two seconds of counts die with a killed
process, and nothing in a job's way depends on them.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Engine

from models.store.errors import StateStoreUnavailable
from models.store.session import connect

logger = logging.getLogger(__name__)

#: Stretch of time one row of a kind covers.
BUCKET_SECONDS = {
    "dependency": 10,
    "type": 60,
    "retry": 60,
    "hour": 3600,
    "violation": 60,
    "crash": 60,
    "run": 300,
    "forecast": 60,
}

#: In one order, so that two workers never wait for each other in a circle.
ADD = """
    INSERT INTO tallies AS tally (kind, bucket, name, total, bad)
    SELECT kind, date_bin(make_interval(secs => seconds), now(), 'epoch'), name, total, bad
    FROM unnest(%(kinds)s::text[], %(seconds)s::int[], %(names)s::text[], %(totals)s::bigint[],
                %(bads)s::bigint[]) AS added (kind, seconds, name, total, bad)
    ORDER BY kind, name
    ON CONFLICT (kind, bucket, name) DO UPDATE
    SET total = tally.total + excluded.total, bad = tally.bad + excluded.bad
"""

Count = tuple[tuple[str, str], tuple[int, int]]


class Tallies:
    """Counts of this process that the table does not have yet."""

    def __init__(self) -> None:
        self._counting = threading.Lock()
        self._counts: dict[tuple[str, str], tuple[int, int]] = {}

    def add(self, kind: str, name: str, *, total: int = 1, bad: int = 0) -> None:
        """Count something of ``kind`` that happened to ``name``."""
        self.add_all([((kind, name), (total, bad))])

    def add_all(self, news: Iterable[Count]) -> None:
        """Count several things at once: every run has some, and a lock is not for nothing."""
        with self._counting:
            counts = self._counts
            for key, (total, bad) in news:
                before = counts.get(key)
                counts[key] = (before[0] + total, before[1] + bad) if before else (total, bad)

    def unwritten(self, kind: str, name: str) -> tuple[int, int]:
        """What the table does not have yet."""
        with self._counting:
            return self._counts.get((kind, name), (0, 0))

    def write(self, engine: Engine) -> None:
        """Move the counts to the table; they stay here if it is away."""
        counts = self.take()
        try:
            add_tallies(engine, counts.items())
        except StateStoreUnavailable:
            for (kind, name), (total, bad) in counts.items():
                self.add(kind, name, total=total, bad=bad)
            raise
        except Exception:
            # Counts that the table will not have are dropped: heartbeats come behind them.
            logger.exception("could not write %s", list(counts))

    def take(self) -> dict[tuple[str, str], tuple[int, int]]:
        """The counts, which are the caller's now."""
        with self._counting:
            counts, self._counts = self._counts, {}
        return counts


def add_tallies(engine: Engine, counts: Iterable[Count]) -> None:
    """Add counts by (kind, name) to the buckets of this moment."""
    listed = list(counts)
    if not listed:
        return
    with connect(engine) as connection:
        connection.exec_driver_sql(ADD, added(listed))


def added(counts: Iterable[Count]) -> dict[str, Any]:
    """The parameters of ADD."""
    listed = list(counts)
    return {
        "kinds": [kind for (kind, _), _ in listed],
        "seconds": [BUCKET_SECONDS[kind] for (kind, _), _ in listed],
        "names": [name for (_, name), _ in listed],
        "totals": [total for _, (total, _) in listed],
        "bads": [bad for _, (_, bad) in listed],
    }
