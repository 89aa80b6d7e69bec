"""What is looked at once a second on a running Fairline: the line, the rates, the waiters."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from sqlalchemy import Engine, text

from loadtest.fairline import Fairline
from loadtest.lab.sampling import Gauges
from loadtest.pool_watch import read_pools

COUNTS = text("""
    SELECT coalesce(sum(queued), 0), coalesce(sum(dispatched), 0), coalesce(sum(running), 0),
           coalesce(sum(succeeded + dead), 0),
           coalesce(sum(scheduled + queued + dispatched + running + succeeded + dead
                        + cancelled + expired), 0)
    FROM job_counts WHERE tenant_id = 0 AND pool = :pool
""")
#: By the index of the line: ids are in order of admission.
OLDEST = text("""
    SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
    FROM (SELECT created_at FROM jobs WHERE status = 'queued' AND pool = :pool
          ORDER BY tenant_id, dependency, priority DESC, id LIMIT 1) AS first
""")


class Speed:
    """A counter's rate since the last look."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def __call__(self, count: float) -> float:
        now = time.monotonic()
        before, self._before = self._before, (now, count)
        if before is None:
            return 0.0
        return round((count - before[1]) / max(1e-6, now - before[0]), 2)


@contextmanager
def fairline_gauges(fairline: Fairline, pool: str = "medium") -> Iterator[Gauges]:
    """``waiting`` (line and broker), ``running``, ``oldest_s``, ``accepted_s``, ``done_s``
    and ``waiters`` (for a database connection, the most of any process)."""
    accepted, done = Speed(), Speed()

    def read(engine: Engine) -> Mapping[str, float]:
        with engine.connect() as connection:
            queued, dispatched, running, ended, all_of_them = connection.execute(
                COUNTS, {"pool": pool}
            ).one()
            oldest = connection.execute(OLDEST, {"pool": pool}).scalar_one()
        waiters = read_pools(fairline.url).waiting
        return {
            "waiting": int(queued + dispatched),
            "running": int(running),
            "oldest_s": round(oldest, 2),
            "accepted_s": accepted(float(all_of_them)),
            "done_s": done(float(ended)),
            "waiters": max(waiters.values(), default=0),
        }

    with fairline.engine() as engine:
        yield lambda: read(engine)
