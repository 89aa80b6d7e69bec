"""State of the pools: what is queued and in flight, the workers and the rate of endings."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine, Row

from app.policy.pool_meter import PoolMeter
from app.reads.demand import READ_TENANT_DEPTHS
from app.scheduler.dispatching.held_back import Allowances, HoldReader, Holds
from app.scheduler.dispatching.pool_queues import PoolQueues
from models.pools import POOLS
from models.presence import PRESENCE_SECONDS, SERVING
from models.store.prepared import PreparedStatement
from models.store.session import fetch

logger = logging.getLogger(__name__)

#: Workers of slices are read this often.
SLICES_SECONDS = 0.5

READ_POOLS = f"""
    SELECT pool.name, coalesce(counts.scheduled, 0) AS scheduled,
           coalesce(counts.queued, 0) AS queued,
           coalesce(counts.dispatched, 0) AS dispatched, coalesce(counts.running, 0) AS running,
           coalesce(counts.ended, 0) AS ended, coalesce(alive.slots, 0) AS slots,
           coalesce(alive.workers, 0) AS workers, coalesce(lane.credit, -1) AS credit,
           coalesce(alive.busy, 0) AS busy
    FROM unnest(%(pools)s::text[]) AS pool (name)
    LEFT JOIN (
        SELECT pool, sum(scheduled)::bigint AS scheduled, sum(queued)::bigint AS queued,
               sum(dispatched)::bigint AS dispatched,
               sum(running)::bigint AS running, sum(succeeded + dead)::bigint AS ended
        FROM job_counts WHERE tenant_id = 0 GROUP BY pool
    ) AS counts ON counts.pool = pool.name
    LEFT JOIN (
        SELECT unnest(pools) AS pool, sum(slots)::int AS slots, count(*)::int AS workers,
               sum(busy)::int AS busy
        FROM processes
        WHERE {SERVING}
        GROUP BY 1
    ) AS alive ON alive.pool = pool.name
    LEFT JOIN express_lanes AS lane ON lane.pool = pool.name
"""
PREPARED = PreparedStatement("read_pools", READ_POOLS)
#: Jobs in held lanes, by pool.
READ_HELD = """
    SELECT pool, sum(queued)::bigint AS queued FROM job_counts
    WHERE tenant_id = 0 AND dependency = ANY (%(lanes)s::text[]) GROUP BY pool
"""
#: Queues of slices that have workers: ``<pool>.free``, ``<pool>.reserved.<tenant>``.
READ_SLICES = f"""
    SELECT alive.queue, sum(alive.slots)::int AS slots, count(*)::int AS workers,
           tenant.id AS tenant_id
    FROM (SELECT unnest(pools) AS queue, slots FROM processes
          WHERE {SERVING}) AS alive
    LEFT JOIN tenants AS tenant ON tenant.name = split_part(alive.queue, '.reserved.', 2)
    WHERE strpos(alive.queue, '.') > 0
    GROUP BY alive.queue, tenant.id
"""
PREPARED_SLICES = PreparedStatement("read_slices", READ_SLICES)
READ_IN_SLICES = """
    SELECT pool, slice, count(*) AS jobs FROM jobs
    WHERE status IN ('dispatched', 'running') AND slice <> '' GROUP BY pool, slice
"""


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool at one moment."""

    name: str
    scheduled: int
    queued: int
    dispatched: int
    running: int
    #: Jobs that ever ended after a run; what expired took no slot.
    ended: int
    #: Slots of live workers, and how many workers there are.
    slots: int
    workers: int
    #: Credit of the express lane; -1 if it was never granted.
    credit: int
    #: Of those in flight, how many are in slices.
    in_slices: int
    #: Slots in use, as the workers reported last.
    busy: int
    ended_per_second: float
    #: Seconds of work that should wait at the broker.
    reserve_seconds: float
    #: Queued jobs that nothing holds back; exact if nothing is held.
    ready: int

    @property
    def in_flight(self) -> int:
        """Jobs at the broker or running, without slices."""
        return self.dispatched + self.running - self.in_slices

    @property
    def waiting(self) -> int:
        """Jobs that wait for a slot: queued, at the broker, or claimed ahead by a worker."""
        return self.ready + max(0, self.in_flight - self.slots)


@dataclass(frozen=True, slots=True)
class Slice:
    """Workers of a pool dedicated to one tenant or to free accounts."""

    #: ``free`` or ``reserved.<tenant>``.
    name: str
    slots: int
    workers: int
    #: None for free accounts.
    tenant_id: int | None


class Pools:
    def __init__(
        self, engine: Engine, queues: PoolQueues, allowances: Allowances = lambda _: {}
    ) -> None:
        self._engine = engine
        self.queues = queues
        #: Whether jobs were scheduled at the last read, or that is not known.
        self.has_scheduled = True
        #: Rate of endings and reserve, by pool.
        self._meters = {pool: PoolMeter(PRESENCE_SECONDS) for pool in POOLS}
        #: What is held back at a time.
        self.holds = HoldReader(engine, allowances).read
        self._slices: dict[str, list[Slice]] = {}
        self._slices_due = 0.0
        #: By pool and slice: jobs in flight; None: not read yet.
        self._in_slices: dict[str, dict[str, int]] | None = None
        #: Queues of slices without a tenant that were logged.
        self._unowned: set[str] = set()

    def read(self, now: float) -> list[PoolState]:
        """All pools of this deployment."""
        rows = self._count()
        holds = self.holds(now)
        held = self._count_held(holds)
        self._refresh_slices(now)
        return [
            PoolState(
                **row._mapping,
                in_slices=sum(self.in_slices(row.name).values()),
                ended_per_second=self._meters[row.name].count(row.ended, now),
                reserve_seconds=self._meters[row.name].adapt(row.queued, row.busy, row.slots, now),
                ready=self._ready(row.name, row.queued, holds, held.get(row.name, 0)),
            )
            for row in rows
        ]

    def at_rest(self) -> bool:
        """Whether no pool has a job, queued or in flight, and all free slots are granted."""
        return all(
            row.queued == row.dispatched == row.running == 0 and row.credit == row.slots
            for row in self._count()
        )

    def _count(self) -> Sequence[Row[Any]]:
        rows = fetch(self._engine, PREPARED, {"pools": list(POOLS)})
        self.has_scheduled = any(row.scheduled > 0 for row in rows)
        return rows

    def capped(self, pool: str) -> list[int]:
        """Tenants with queued jobs that have as many in flight as they may."""
        return self.queues[pool].fair.at_cap() if pool in self.queues else []

    def slices(self, pool: str) -> list[Slice]:
        """Slices of the pool that have workers, in the order of their names."""
        return self._slices.get(pool, [])

    def in_slices(self, pool: str) -> dict[str, int]:
        """Jobs in flight in the slices of a pool."""
        return (self._in_slices or {}).get(pool, {})

    def shared_rate(self, pool: PoolState) -> float:
        """Endings per second in slots that all tenants share: what is measured includes slices."""
        in_slices = sum(one.slots for one in self.slices(pool.name))
        return pool.ended_per_second * pool.slots / max(1, pool.slots + in_slices)

    def _refresh_slices(self, now: float) -> None:
        """Read slices and what is in flight there.

        Not the latter where none has workers: no job is sent to a slice then, and the planner may
        take the index of all in flight, which may be full of entries that wait for vacuum.
        """
        if now >= self._slices_due:
            self._slices_due = now + SLICES_SECONDS
            self._slices = self._read_slices()
        if self._in_slices is None or self._in_slices or self._slices:
            rows = fetch(self._engine, READ_IN_SLICES)
            self._in_slices = {}
            for row in rows:
                self._in_slices.setdefault(row.pool, {})[row.slice] = row.jobs

    def _read_slices(self) -> dict[str, list[Slice]]:
        rows = fetch(self._engine, PREPARED_SLICES)
        slices: dict[str, list[Slice]] = {}
        for row in sorted(rows, key=lambda row: row.queue):
            pool, _, name = row.queue.partition(".")
            # A slice whose tenant is gone, or never was there, has no jobs.
            if name == "free" or row.tenant_id is not None:
                found = Slice(name, row.slots, row.workers, row.tenant_id)
                slices.setdefault(pool, []).append(found)
            elif row.queue not in self._unowned:
                self._unowned.add(row.queue)
                logger.warning("workers serve %s, but there is no such tenant", row.queue)
        return slices

    def _count_held(self, holds: Holds) -> dict[str, int]:
        """Jobs in held lanes, or of tenants at their cap if these are more: some may be both."""
        capped = [(pool, tenant_id) for pool in POOLS for tenant_id in self.capped(pool)]
        held: dict[str, int] = {}
        if not (holds.lanes or capped):
            return held
        rows = list(fetch(self._engine, READ_HELD, {"lanes": list(holds.lanes)}))
        if capped:
            pools, tenants = map(list, zip(*capped, strict=True))
            rows += fetch(self._engine, READ_TENANT_DEPTHS, {"pools": pools, "capped": tenants})
        for row in rows:
            held[row.pool] = max(held.get(row.pool, 0), row.queued)
        return held

    def _ready(self, pool: str, queued: int, holds: Holds, held: int) -> int:
        if not self.queues.current or not queued:
            return queued
        if not self.queues[pool].fair.any_waiting(holds.lanes):
            return 0  # held, at their caps, or free accounts whose slice is full
        return max(1, queued - held)

    def free_full(self, pool: str) -> bool:
        """Whether free accounts may have no more in flight."""
        return pool in self.queues and self.queues[pool].fair.free_full
