"""How many jobs of a tenant wait in a pool, and whether one more may.

Waiting is scheduled or queued, retries included, by the counters that are kept with the rows. A
process remembers what it read and adds what it admitted since. It reads again after a second,
or sooner the less room is left: what other processes may have admitted meanwhile must not
matter. So a limit may be passed by what arrives at other processes during one read. Reads of all
tenants and pools that are due are one statement; far from the limit nobody waits for it.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from sqlalchemy import Connection, Engine

from models.store.arrays import plain_array, text_array
from models.store.group_commit import GroupCommit, Ticket
from models.store.session import connect

#: A reading is never older than this.
FRESH_SECONDS = 1.0
#: What other processes may add to a line in a second: less room, fresher readings.
OTHERS_PER_SECOND = 10_000.0
#: Who was refused is refused from memory for so long.
REFUSE_SECONDS = 0.1
#: Lines that a process remembers; beyond, it begins anew.
MOST_LINES = 10_000

READ_DEPTHS = """
    SELECT asked.place, line.depth
    FROM unnest(%(places)s::int[], %(tenants)s::bigint[], %(pools)s::text[])
        AS asked (place, tenant_id, pool),
    LATERAL (
        SELECT coalesce(sum(scheduled + queued), 0)::bigint AS depth FROM job_counts
        WHERE tenant_id = asked.tenant_id AND pool = asked.pool
    ) AS line
"""
READ_WAITING = """
    SELECT pool, sum(scheduled)::bigint AS scheduled, sum(queued)::bigint AS queued
    FROM job_counts
    WHERE tenant_id = %(tenant_id)s GROUP BY pool ORDER BY pool
"""

#: A tenant's line in a pool.
Line = tuple[int, str]


class DepthReading:
    """What a process knows of one line."""

    __slots__ = ("admitted", "depth", "pending", "read_at", "refresh")

    def __init__(self) -> None:
        self.depth = 0
        #: When the last read began; None: there was none.
        self.read_at: float | None = None
        #: Admitted since, or not committed when it began.
        self.admitted = 0
        #: Admitted and not committed yet.
        self.pending = 0
        #: A read that nobody waits for.
        self.refresh: Ticket[Line, int] | None = None


class Depth:
    """The lines of the tenants that one process admits jobs to."""

    def __init__(self, engine: Engine, timeout_seconds: float) -> None:
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._readings: dict[Line, DepthReading] = {}
        self._guard = threading.Lock()
        self._reads: GroupCommit[Line, int] = GroupCommit(self._read, name="depth")

    def enter(self, line: Line, jobs: int, limit: int) -> int:
        """Let up to ``jobs`` into the line; how many. Tell :meth:`settle` when they are there."""
        entered = self._from_memory(line, jobs, limit)
        if entered is None:
            depth = self._reads.submit(line, self._timeout_seconds)
            entered = self._from_memory(line, jobs, limit, read=depth)
            assert entered is not None
        return entered

    def settle(self, line: Line, jobs: int, *, joined: bool = True) -> None:
        """So many that were let in are committed, or will not be; ``joined`` if nobody knows."""
        with self._guard:
            reading = self._readings.get(line)
            if reading is not None:
                reading.pending = max(0, reading.pending - jobs)
                if not joined:
                    reading.admitted = max(0, reading.admitted - jobs)

    def close(self, timeout: float) -> None:
        """Read no more."""
        self._reads.close(timeout)

    def _from_memory(
        self, line: Line, jobs: int, limit: int, *, read: int | None = None
    ) -> int | None:
        """How many may enter; None if that has to be read. ``read``: it was, just now."""
        with self._guard:
            reading = self._reading(line)
            if reading.read_at is None:
                if read is None:
                    return None
                reading.depth = read  # it was forgotten since
            room = max(0, limit - reading.depth - reading.admitted)
            age = time.monotonic() - (reading.read_at or 0.0)
            if read is None:
                most = (room - jobs) / OTHERS_PER_SECOND if room else REFUSE_SECONDS
                if age > min(most, FRESH_SECONDS):
                    if room - jobs < OTHERS_PER_SECOND * FRESH_SECONDS:
                        return None
                    self._refresh(line, reading)
            entered = min(room, jobs)
            reading.admitted += entered
            reading.pending += entered
            return entered

    def _reading(self, line: Line) -> DepthReading:
        reading = self._readings.get(line)
        if reading is None:
            if len(self._readings) >= MOST_LINES:
                # What is on its way is known nowhere else.
                self._readings = {key: kept for key, kept in self._readings.items() if kept.pending}
            reading = self._readings[line] = DepthReading()
        return reading

    def _refresh(self, line: Line, reading: DepthReading) -> None:
        """Read, and let nobody wait for it. If the store is away, admitting will say so."""
        if reading.refresh is None or reading.refresh.done:
            reading.refresh = self._reads.post(line)

    def _read(self, group: Sequence[Line]) -> list[int]:
        lines = sorted(set(group))
        began = time.monotonic()
        with self._guard:
            pending = {line: self._reading(line).pending for line in lines}
            before = {line: self._reading(line).admitted for line in lines}
        with connect(self._engine) as connection:
            rows = connection.exec_driver_sql(
                READ_DEPTHS,
                {
                    "places": plain_array(range(len(lines))),
                    "tenants": plain_array(tenant_id for tenant_id, _ in lines),
                    "pools": text_array(pool for _, pool in lines),
                },
            ).all()
        depths = {lines[row.place]: row.depth for row in rows}
        with self._guard:
            for line, depth in depths.items():
                reading = self._reading(line)
                reading.depth, reading.read_at = depth, began
                # What was on its way when the read began may be counted twice now, never not
                # at all.
                reading.admitted = max(0, reading.admitted + pending[line] - before[line])
        return [depths[line] for line in group]


def read_waiting(connection: Connection, tenant_id: int) -> dict[str, dict[str, int]]:
    """What of a tenant's waits, by pool."""
    rows = connection.exec_driver_sql(READ_WAITING, {"tenant_id": tenant_id})
    return {
        row.pool: {"scheduled": row.scheduled, "queued": row.queued}
        for row in rows
        if row.scheduled or row.queued
    }
