"""How many jobs of a tenant wait in a pool, and whether one more may.

Waiting is scheduled or queued, retries included, by the counters that are kept with the rows. A
process remembers what it read and adds what it admitted since. It reads again after a second,
or sooner the closer the limit is: what other processes may have admitted meanwhile must not
matter. So a limit may be passed by what arrives at other processes during one read. Reads of all
tenants and pools that are due are one statement; far from the limit nobody waits for it.

Other things of which a tenant may have a number are bounded in the same way: see ``read``.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from sqlalchemy import Connection, Engine

from models.store.arrays import plain_array, text_array
from models.store.group_commit import GroupCommit
from models.store.session import fetch
from models.store.ticket import Ticket

#: A reading is never older than this.
FRESH_SECONDS = 1.0
#: What other processes may add to a queue in a second: less room, fresher readings.
OTHERS_PER_SECOND = 10_000.0
#: After a refusal others are refused from memory for so long.
REFUSE_SECONDS = 0.1
#: Queues that a process remembers; beyond, it begins anew.
MOST_QUEUES = 10_000

READ_DEPTHS = """
    SELECT asked.place, queue.depth
    FROM unnest(%(places)s::int[], %(tenants)s::bigint[], %(pools)s::text[])
        AS asked (place, tenant_id, pool),
    LATERAL (
        SELECT coalesce(sum(scheduled + queued), 0)::bigint AS depth FROM job_counts
        WHERE tenant_id = asked.tenant_id AND pool = asked.pool
    ) AS queue
"""
READ_WAITING = """
    SELECT pool, sum(scheduled)::bigint AS scheduled, sum(queued)::bigint AS queued
    FROM job_counts
    WHERE tenant_id = %(tenant_id)s GROUP BY pool ORDER BY pool
"""

#: A tenant and a pool.
TenantQueue = tuple[int, str]
ReadDepths = Callable[[Engine, Sequence[TenantQueue]], dict[TenantQueue, int]]


@dataclass(slots=True)
class DepthReading:
    """What a process knows of one queue."""

    depth: int = 0
    #: When the last read began; None: there was none.
    read_at: float | None = None
    #: Admitted since, or not committed when it began.
    admitted: int = 0
    #: Admitted and not committed yet.
    pending: int = 0
    #: A read that nobody waits for.
    refresh: Ticket[TenantQueue, int] | None = None


class Depth:
    """The queues that one process admits jobs to."""

    def __init__(
        self,
        engine: Engine,
        timeout_seconds: float,
        read: ReadDepths | None = None,
        *,
        fresh_seconds: float = FRESH_SECONDS,
        others_per_second: float = OTHERS_PER_SECOND,
        exact: bool = True,
    ) -> None:
        """``read``: how many there are of something else than waiting jobs.

        ``exact``: whether it is read again before less than what was asked for is let in; else
        that is known for a moment, as it is when there is no room at all.
        """
        self._engine = engine
        self._timeout_seconds = timeout_seconds
        self._read_depths = read or read_depths
        self._fresh_seconds = fresh_seconds
        self._others_per_second = others_per_second
        self._exact = exact
        self._readings: dict[TenantQueue, DepthReading] = {}
        self._guard = threading.Lock()
        self._reads: GroupCommit[TenantQueue, int] = GroupCommit(self._read, name="depth")
        self.close = self._reads.close

    def enter(self, queue: TenantQueue, jobs: int, limit: int) -> int:
        """Reserve room for up to ``jobs``; for how many. :meth:`settle` must follow."""
        entered = self._from_memory(queue, jobs, limit)
        if entered is None:
            depth = self._reads.submit(queue, self._timeout_seconds)
            entered = self._from_memory(queue, jobs, limit, read=depth)
            assert entered is not None
        return entered

    def settle(self, queue: TenantQueue, jobs: int, *, joined: bool = True) -> None:
        """The reserved jobs are committed, or will not be; ``joined`` also if that is unknown."""
        with self._guard:
            reading = self._readings.get(queue)
            if reading is not None:
                reading.pending = max(0, reading.pending - jobs)
                if not joined:
                    reading.admitted = max(0, reading.admitted - jobs)

    def _from_memory(
        self, queue: TenantQueue, jobs: int, limit: int, *, read: int | None = None
    ) -> int | None:
        """How many may enter; None if that has to be read. ``read``: it was, just now."""
        with self._guard:
            reading = self._reading(queue)
            if reading.read_at is None:
                if read is None:
                    return None
                reading.depth = read  # it was forgotten since
            room = max(0, limit - reading.depth - reading.admitted)
            age = time.monotonic() - (reading.read_at or 0.0)
            if read is None:
                full = not room or (room < jobs and not self._exact)
                most = REFUSE_SECONDS if full else (room - jobs) / self._others_per_second
                if age > min(most, self._fresh_seconds):
                    if room - jobs < self._others_per_second * self._fresh_seconds:
                        return None
                    # Nobody waits for it. If the store is away, admitting will fail.
                    if reading.refresh is None or reading.refresh.done:
                        reading.refresh = self._reads.post(queue)
            entered = min(room, jobs)
            reading.admitted += entered
            reading.pending += entered
            return entered

    def _reading(self, queue: TenantQueue) -> DepthReading:
        reading = self._readings.get(queue)
        if reading is None:
            if len(self._readings) >= MOST_QUEUES:
                # What is not committed yet is known nowhere else.
                self._readings = {key: kept for key, kept in self._readings.items() if kept.pending}
            reading = self._readings[queue] = DepthReading()
        return reading

    def _read(self, group: Sequence[TenantQueue]) -> list[int]:
        queues = sorted(set(group))
        began = time.monotonic()
        with self._guard:
            readings = {queue: self._reading(queue) for queue in queues}
            committed = {queue: of.admitted - of.pending for queue, of in readings.items()}
        depths = self._read_depths(self._engine, queues)
        with self._guard:
            for queue, depth in depths.items():
                reading = self._reading(queue)
                reading.depth, reading.read_at = depth, began
                # What was not committed when the read began may be counted twice now, never not
                # at all.
                reading.admitted = max(0, reading.admitted - committed[queue])
        return [depths[queue] for queue in group]


def read_depths(engine: Engine, queues: Sequence[TenantQueue]) -> dict[TenantQueue, int]:
    """How many jobs wait in each queue."""
    asked = {
        "places": plain_array(range(len(queues))),
        "tenants": plain_array(tenant_id for tenant_id, _ in queues),
        "pools": text_array(pool for _, pool in queues),
    }
    return {queues[row.place]: row.depth for row in fetch(engine, READ_DEPTHS, asked)}


def read_waiting(connection: Connection, tenant_id: int) -> dict[str, dict[str, int]]:
    """Jobs of a tenant that wait, by pool."""
    rows = connection.exec_driver_sql(READ_WAITING, {"tenant_id": tenant_id})
    return {
        row.pool: {"scheduled": row.scheduled, "queued": row.queued}
        for row in rows
        if row.scheduled or row.queued
    }
