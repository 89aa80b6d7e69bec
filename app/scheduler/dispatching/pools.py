"""The pools as the scheduler sees them: line, flight, workers and the rate of endings."""

from __future__ import annotations

import logging
from dataclasses import dataclass, replace

from sqlalchemy import Engine

from app.policy.window import BRIDGE_SECONDS, next_bridge, smoothed_rate
from app.reads.demand import READ_TENANT_DEPTHS
from app.reads.holds import HoldReader, Holds, Rooms
from app.scheduler.dispatching.lines import Lines
from models.pools import POOLS
from models.presence import PRESENCE_SECONDS, SERVING
from models.store.session import connect

logger = logging.getLogger(__name__)

#: The rate of endings is taken over this long: ten that end in step are no rate of hundreds.
RATE_SECONDS = 1.0
#: Workers of slices are looked for this often.
SLICES_SECONDS = 0.5

READ_POOLS = f"""
    SELECT pool.name, coalesce(counts.queued, 0) AS queued,
           coalesce(counts.dispatched, 0) AS dispatched, coalesce(counts.running, 0) AS running,
           coalesce(counts.ended, 0) AS ended, coalesce(alive.slots, 0) AS slots,
           coalesce(alive.workers, 0) AS workers, coalesce(lane.credit, -1) AS credit,
           (SELECT count(*) FROM jobs
            WHERE status IN ('dispatched', 'running') AND slice <> ''
              AND jobs.pool = pool.name) AS in_slices,
           coalesce(alive.busy, 0) AS busy
    FROM unnest(%(pools)s::text[]) AS pool (name)
    LEFT JOIN (
        SELECT pool, sum(queued)::bigint AS queued, sum(dispatched)::bigint AS dispatched,
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
#: Jobs in held lanes, by pool.
READ_HELD = """
    SELECT pool, sum(queued)::bigint AS queued FROM job_counts
    WHERE tenant_id = 0 AND dependency = ANY (%(lanes)s::text[]) GROUP BY pool
"""
#: Queues beside the pools' own that have workers: ``<pool>.free``, ``<pool>.reserved.<tenant>``.
READ_SLICES = f"""
    SELECT alive.queue, sum(alive.slots)::int AS slots, count(*)::int AS workers,
           tenant.id AS tenant_id
    FROM (SELECT unnest(pools) AS queue, slots FROM processes
          WHERE {SERVING}) AS alive
    LEFT JOIN tenants AS tenant ON tenant.name = split_part(alive.queue, '.reserved.', 2)
    WHERE strpos(alive.queue, '.') > 0
    GROUP BY alive.queue, tenant.id
"""
READ_IN_SLICES = """
    SELECT slice, count(*) AS jobs FROM jobs
    WHERE status IN ('dispatched', 'running') AND slice <> '' AND pool = %(pool)s
    GROUP BY slice
"""


@dataclass(frozen=True, slots=True)
class PoolState:
    """A pool as the scheduler sees it now."""

    name: str
    queued: int
    dispatched: int
    running: int
    #: Jobs that were run to an end since the beginning; what expired took no slot.
    ended: int
    #: Slots of living workers.
    slots: int
    #: Living worker processes.
    workers: int
    #: Credit of the express lane; -1 if it was never granted.
    credit: int
    #: Of those in flight, how many are in slices.
    in_slices: int = 0
    #: Slots in use, as the workers said last.
    busy: int = 0
    #: How many come to an end in a second.
    ended_per_second: float = 0.0
    #: Seconds of work that should wait at the broker.
    bridge: float = BRIDGE_SECONDS
    #: Of the queued, those that nothing holds back; exact if nothing is held.
    ready: int = 0

    @property
    def in_flight(self) -> int:
        """Jobs at the broker or running, but for slices."""
        return self.dispatched + self.running - self.in_slices

    @property
    def waiting(self) -> int:
        """Jobs that wait for a slot, in the line, at the broker, or claimed ahead by a worker."""
        return self.ready + max(0, self.in_flight - self.slots)


@dataclass(frozen=True, slots=True)
class Slice:
    """Workers of a pool that are not everybody's."""

    #: ``free`` or ``reserved.<tenant>``.
    name: str
    slots: int
    workers: int
    #: Whose it is; None for the free accounts'.
    tenant_id: int | None


class Pools:
    """Reads the pools and keeps their rates."""

    def __init__(self, engine: Engine, lines: Lines, quotas: Rooms | None = None) -> None:
        self._engine = engine
        self.lines = lines
        self._rates: dict[str, tuple[float, int, float]] = {}
        self._bridges: dict[str, tuple[float, float]] = {}
        self._holds = HoldReader(engine, quotas)
        self._slices: dict[str, list[Slice]] = {}
        self._slices_due = 0.0
        #: Queues of slices that were said to be nobody's.
        self._nobodys: set[str] = set()

    def read(self, now: float) -> list[PoolState]:
        """All pools of this deployment."""
        with connect(self._engine) as connection:
            rows = connection.exec_driver_sql(READ_POOLS, {"pools": list(POOLS)}).all()
        pools = [
            PoolState(
                name=row.name,
                queued=row.queued,
                dispatched=row.dispatched,
                running=row.running,
                ended=row.ended,
                slots=row.slots,
                workers=row.workers,
                credit=row.credit,
                in_slices=row.in_slices,
                busy=row.busy,
                ended_per_second=self._rate(row.name, row.ended, now),
                bridge=self._bridge(row.name, row.busy, row.slots, now, line=row.queued > 0),
                ready=row.queued,
            )
            for row in rows
        ]
        holds = self.holds(now)
        kept = self._kept_back(holds)
        return [self._count_ready(pool, holds, kept.get(pool.name, 0)) for pool in pools]

    def holds(self, now: float) -> Holds:
        """What is held back."""
        return self._holds.read(now)

    def capped(self, pool: str) -> list[int]:
        """Tenants that have jobs in the line and as many in flight as they may."""
        return self.lines[pool].fair.at_cap() if pool in self.lines else []

    def slices(self, pool: str, now: float) -> list[Slice]:
        """Slices of the pool that have workers, in the order of their names."""
        if now >= self._slices_due:
            self._slices_due = now + SLICES_SECONDS
            self._slices = self._read_slices()
        return self._slices.get(pool, [])

    def in_slices(self, pool: str) -> dict[str, int]:
        """Jobs in flight in the slices of a pool."""
        with connect(self._engine) as connection:
            rows = connection.exec_driver_sql(READ_IN_SLICES, {"pool": pool}).all()
        return {row.slice: row.jobs for row in rows}

    def _read_slices(self) -> dict[str, list[Slice]]:
        with connect(self._engine) as connection:
            rows = connection.exec_driver_sql(READ_SLICES).all()
        slices: dict[str, list[Slice]] = {}
        for row in sorted(rows, key=lambda row: row.queue):
            pool, _, name = row.queue.partition(".")
            # A slice of nobody has no jobs: its tenant is gone, or was never there.
            if name == "free" or row.tenant_id is not None:
                piece = Slice(name, row.slots, row.workers, row.tenant_id)
                slices.setdefault(pool, []).append(piece)
            elif row.queue not in self._nobodys:
                self._nobodys.add(row.queue)
                logger.warning("workers serve %s, but there is no such tenant", row.queue)
        return slices

    def _kept_back(self, holds: Holds) -> dict[str, int]:
        """Jobs in held lanes, or of tenants at their cap if these are more: some may be both."""
        capped = [(pool, tenant_id) for pool in POOLS for tenant_id in self.capped(pool)]
        kept: dict[str, int] = {}
        if not (holds.lanes or capped):
            return kept
        with connect(self._engine) as connection:
            rows = list(connection.exec_driver_sql(READ_HELD, {"lanes": list(holds.lanes)}))
            if capped:
                rows += connection.exec_driver_sql(
                    READ_TENANT_DEPTHS,
                    {
                        "pools": [pool for pool, _ in capped],
                        "capped": [each for _, each in capped],
                    },
                )
        for row in rows:
            kept[row.pool] = max(kept.get(row.pool, 0), row.queued)
        return kept

    def _count_ready(self, pool: PoolState, holds: Holds, kept: int) -> PoolState:
        if not self.lines.current or not pool.queued:
            return pool
        if not self.lines[pool.name].fair.waiting(holds.lanes):
            # Held, at their caps, or free accounts whose slice is full.
            return replace(pool, ready=0)
        return replace(pool, ready=max(1, pool.queued - kept))

    def free_full(self, pool: str) -> bool:
        """Whether free accounts may have no more in flight."""
        return pool in self.lines and self.lines[pool].fair.free_full

    def _bridge(self, pool: str, busy: int, slots: int, now: float, *, line: bool) -> float:
        """Looked at as often as workers say how many slots are busy, and only under load."""
        bridge, due = self._bridges.get(pool, (BRIDGE_SECONDS, now + PRESENCE_SECONDS))
        if not line:
            due = now + PRESENCE_SECONDS
        elif now >= due:
            bridge, due = next_bridge(bridge, busy, slots), now + PRESENCE_SECONDS
        self._bridges[pool] = (bridge, due)
        return bridge

    def _rate(self, pool: str, ended: int, now: float) -> float:
        rate, before, at = self._rates.get(pool, (0.0, ended, now))
        if now - at >= RATE_SECONDS or pool not in self._rates:
            rate = smoothed_rate(rate, ended - before, now - at)
            self._rates[pool] = (rate, ended, now)
        return rate
