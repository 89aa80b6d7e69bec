"""Share reconciler: replaces what tenants were charged in advance by what they used.

Once a second the leader compares its queues with the tables. The estimate of a job is replaced by
its run time as soon as that is longer, and by its usage when it has ended. The passes are saved
with the usage they include, for the next leader to continue from.

Not exact at midnight: what a transaction of the old day settles after the new day was read is not
charged.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from datetime import date

from sqlalchemy import Engine

from app.policy.fairshare import default_seconds
from app.reads.estimates import Estimates
from app.scheduler.dispatching.pool_queues import PoolQueue, PoolQueues
from app.scheduler.role import RoleQueries
from models.jobs.transfer import MOVED_SHARD
from models.leadership import STILL_LEADER, Leader
from models.pools import POOLS
from models.store.arrays import plain_array, text_array
from models.store.prepared import PreparedStatement

RECONCILE_SECONDS = 1.0
#: After a turn it pauses so many times as long as that took, if there are very many tenants.
PAUSE_FACTOR = 20.0
#: Smooths a tenant's rate of starts over a few seconds.
RATE_SMOOTHING = 0.2

#: One snapshot for both: a job is either in flight or in the usage. What runs in a slice takes
#: nothing from others: it counts for the cap only. What was used in another cell took nothing here.
READ_CHARGES = f"""
    WITH estimate AS (
        SELECT * FROM unnest(%(types)s::text[], %(seconds)s::float8[]) AS known (type, seconds)
    ), flight AS (
        SELECT job.pool, job.tenant_id, count(*)::int AS jobs,
               count(*) FILTER (WHERE job.slice = '')::int AS shared, sum(greatest(
                   coalesce(estimate.seconds, unmeasured.seconds),
                   CASE job.status WHEN 'running'
                       THEN extract(epoch FROM now() - job.started_at)::float8 END))
                   FILTER (WHERE job.slice = '') AS pending
        FROM jobs AS job
        JOIN unnest(%(pools)s::text[], %(defaults)s::float8[]) AS unmeasured (pool, seconds)
            ON unmeasured.pool = job.pool
        LEFT JOIN estimate ON estimate.type = job.type
        WHERE job.status IN ('dispatched', 'running')
        GROUP BY job.pool, job.tenant_id
    )
    SELECT pool, tenant_id, jobs, shared, coalesce(pending, 0) AS seconds, NULL::date AS day,
           current_date AS today
    FROM flight
    UNION ALL
    SELECT used.pool, used.tenant_id, 0, 0, sum(used.slot_seconds - used.slice_seconds), used.day,
           current_date
    FROM unnest(%(active_pools)s::text[], %(active)s::bigint[]) AS watched (pool, tenant_id)
    JOIN usage AS used USING (pool, tenant_id)
    WHERE used.day >= current_date - 1 AND used.shard <> {MOVED_SHARD}
    GROUP BY used.pool, used.tenant_id, used.day
"""
PREPARED = PreparedStatement("read_charges", READ_CHARGES)
#: Parameters of SAVE, in the order of its columns. Tenant 0 has the pool's virtual time.
SAVED = (
    "tenant_id", "pool", "served", "day", "seconds", "weight", "in_flight", "started_per_second",
)  # fmt: skip
SAVE = f"""
    INSERT INTO shares AS share (tenant_id, pool, pass, counted_day, counted_seconds, weight,
                                 in_flight, started_per_second)
    SELECT * FROM unnest(%(tenant_id)s::bigint[], %(pool)s::text[], %(served)s::float8[],
                         %(day)s::date[], %(seconds)s::float8[], %(weight)s::float8[],
                         %(in_flight)s::int[], %(started_per_second)s::float8[])
    WHERE {STILL_LEADER}
    ORDER BY 1, 2
    ON CONFLICT (tenant_id, pool) DO UPDATE
    SET pass = excluded.pass, counted_day = excluded.counted_day,
        counted_seconds = excluded.counted_seconds, weight = excluded.weight,
        in_flight = excluded.in_flight, started_per_second = excluded.started_per_second,
        updated_at = now()
"""
PREPARED_SAVE = PreparedStatement("save_shares", SAVE)


@dataclass(slots=True)
class Charges:
    """What the tables say about one tenant in one pool."""

    #: Jobs in flight, and those of them on shared workers.
    in_flight: int = 0
    shared: int = 0
    #: Slot-seconds of the latter: estimated, or more if they already took longer.
    pending: float = 0.0
    #: Slot-seconds settled, by day.
    used: dict[date, float] = field(default_factory=dict)


class ShareReconciler(RoleQueries):
    def __init__(
        self, engine: Engine, leader: Leader, queues: PoolQueues, estimates: Estimates
    ) -> None:
        super().__init__(engine, leader)
        self._queues = queues
        self._estimates = estimates
        self._at: float | None = None
        self._due = 0.0
        self._rates: dict[tuple[str, int], float] = {}

    def run_once(self, now: float) -> int:
        """Reconcile every pool; 0, for no job is touched."""
        if not self._queues.current or now < self._due:
            return 0
        begin = time.monotonic()
        seconds, self._at = max(now - (self._at or now), 0.001), now
        charges, today = self._read_charges(now)
        for pool, queue in self._queues.items():
            self._reconcile(pool, queue, charges, today, seconds)
        self._save(today)
        for pool, queue in self._queues.items():
            queue.active = {
                each for each in queue.active if charges.get((pool, each), Charges()).in_flight
            }
            queue.started.clear()
            queue.contended = False
        self._rates = {key: rate for key, rate in self._rates.items() if key in charges}
        self._due = now + PAUSE_FACTOR * (time.monotonic() - begin)
        return 0

    def _read_charges(self, now: float) -> tuple[dict[tuple[str, int], Charges], date]:
        known = self._estimates.known(now)
        active = [
            (pool, tenant_id) for pool, queue in self._queues.items() for tenant_id in queue.active
        ]
        rows = self._read(
            PREPARED,
            types=text_array(known),
            seconds=plain_array(map(str, known.values())),
            pools=text_array(POOLS),
            defaults=plain_array([str(default_seconds(pool)) for pool in POOLS]),
            active_pools=text_array([pool for pool, _ in active]),
            active=plain_array([tenant_id for _, tenant_id in active]),
        )
        today: date = (rows or self._read("SELECT current_date AS today"))[0].today
        charges: dict[tuple[str, int], Charges] = {}
        for row in rows:
            charge = charges.setdefault((row.pool, row.tenant_id), Charges())
            if row.day is None:
                charge.in_flight, charge.shared = row.jobs, row.shared
                charge.pending = float(row.seconds)
            else:
                charge.used[row.day] = float(row.seconds)
        return charges, today

    def _reconcile(
        self,
        pool: str,
        queue: PoolQueue,
        charges: dict[tuple[str, int], Charges],
        today: date,
        seconds: float,
    ) -> None:
        # Tenants whose jobs came by the express lane are seen here first.
        queue.active.update(
            tenant_id
            for each, tenant_id in charges
            if each == pool and queue.fair.has_tenant(tenant_id)
        )
        for tenant_id in queue.active:
            charge = charges.get((pool, tenant_id), Charges())
            counted = queue.counted.get(tenant_id, (today, 0.0))
            used, queue.counted[tenant_id] = used_since(counted, charge.used)
            if not (queue.contended or queue.fair.is_waiting(tenant_id)):
                used = 0.0  # slots that no other tenant wanted, by the express lane
            pending, shared = charge.pending, charge.shared
            queue.fair.reconcile(tenant_id, used=used, pending=pending, in_flight=shared)
            queue.fair.set_in_flight(tenant_id, charge.in_flight)
            started = queue.started.get(tenant_id, 0) / seconds
            before = self._rates.get((pool, tenant_id), started)
            self._rates[pool, tenant_id] = before + (started - before) * RATE_SMOOTHING

    def _save(self, today: date) -> None:
        rows: list[tuple[object, ...]] = []
        for pool, queue in self._queues.items():
            fair = queue.fair
            rows.append((0, pool, fair.virtual_time, today, 0.0, fair.waiting_weight, 0, 0.0))
            for tenant_id in queue.active:
                account = fair.account(tenant_id)
                row = (tenant_id, pool, account.served, *queue.counted[tenant_id], account.weight)
                rate = self._rates.get((pool, tenant_id), 0.0)
                rows.append((*row, account.in_flight, rate))
        columns = [plain_array(map(str, column)) for column in zip(*rows, strict=True)]
        self._write(PREPARED_SAVE, **dict(zip(SAVED, columns, strict=True)))


def used_since(
    counted: tuple[date, float], used: dict[date, float]
) -> tuple[float, tuple[date, float]]:
    """Slot-seconds beyond those that were counted, and what is counted now."""
    day, seconds = counted
    since = max(0.0, used.get(day, seconds) - seconds)
    since += sum(more for later, more in used.items() if later > day)
    newest = max(used, default=day)
    return since, (newest, used[newest]) if newest in used and newest >= day else counted
