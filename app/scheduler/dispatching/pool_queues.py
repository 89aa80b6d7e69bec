"""Pool queues: which tenants have jobs queued in which pool, in the leader's memory.

Reading that from the tables costs a step per tenant. Instead, a trigger writes an arrival (table
``arrivals``) in the transaction that queues a job, and a lane that gave fewer jobs than requested
is empty until its next arrival. Arrivals are taken before an allocation: a job whose arrival is not
committed yet is seen in the next turn. They also say where in the lane the job is: a walk begins
there (:mod:`app.policy.lane_heads`). A new leader reads everything anew, and every leader sweeps
all lanes once in a while: a job that was locked as a walk passed it is found then.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row

from app.policy.fairshare import FairQueue, TenantClaim, Tier, default_seconds, entitlement_of
from app.policy.lane_heads import OPEN, LaneHeads
from app.scheduler.role import RoleQueries
from app.tenants.caps import cap_sql
from models.job_counts import SERVER, CountFolder, Drawn
from models.jobs.dispatch import LaneKey
from models.jobs.lane_walk import head_walk
from models.jobs.transfer import MOVED_SHARD
from models.leadership import STILL_LEADER, Leader
from models.pools import POOLS
from models.store.prepared import PreparedStatement
from models.store.session import connect
from tasks.retry.guards import THROTTLED_IN_FLIGHT

#: All lanes are read this often, in case an arrival was missed.
SWEEP_SECONDS = 30.0
#: Arrivals taken in one turn; if there are more, all are discarded and the lanes are swept.
MOST_ARRIVALS = 20_000
#: Tenants without jobs for so long are dropped from memory; their pass is in the table.
FORGET_SECONDS = 600.0
#: Changes of tenants are read this often.
CHANGES_SECONDS = 1.0
#: Longest gap between two leaders; usage during a longer one is not charged.
GAP_SECONDS = 120.0
#: A change may become visible so long after its timestamp.
LATE_SECONDS = 10.0

#: Bounded: while no scheduler leads they pile up. Begins behind those that were taken, which stay
#: in the index while a snapshot is held open; numbers of another server mean nothing.
TAKE_ARRIVALS = f"""
    DELETE FROM arrivals
    WHERE id = ANY (ARRAY(
        SELECT id FROM arrivals
        WHERE id > CASE {SERVER}
                   WHEN %(server)s::text THEN %(taken)s::bigint ELSE 0 END
          AND {STILL_LEADER}
        ORDER BY id LIMIT {MOST_ARRIVALS}))
    RETURNING pool, tenant_id, dependency, priority, first_id::text AS first_id,
              last_id::text AS last_id
"""
PREPARED = PreparedStatement("take_arrivals", TAKE_ARRIVALS)
#: TRUNCATE waits for transactions that are about to add arrivals, but not for long: submissions
#: wait behind it.
DISCARD_ARRIVALS = f"""
    DO $$ BEGIN
        IF {STILL_LEADER} THEN
            SET LOCAL lock_timeout = '200ms';
            TRUNCATE arrivals;
        END IF;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END $$
"""
SWEEP = f"{head_walk()} SELECT pool, tenant_id, dependency, priority, id::text AS id FROM head"
#: Up to where the previous leader counted usage, if it did recently. Otherwise counting begins now:
#: whatever was used meanwhile, no other tenant wanted.
READ_TENANTS = f"""
    SELECT asked.id AS tenant_id, coalesce(tenant.tier, 'standard') AS tier, tenant.weight,
           coalesce(tenant.share, 1) AS share, {cap_sql("%(pool)s::text")} AS cap,
           share.pass AS served,
           CASE WHEN fresh.share THEN share.counted_day ELSE current_date END AS counted_day,
           CASE WHEN fresh.share THEN share.counted_seconds ELSE coalesce((
               SELECT sum(slot_seconds - slice_seconds) FROM usage
               WHERE tenant_id = asked.id AND pool = %(pool)s AND day = current_date
                 AND shard <> {MOVED_SHARD}), 0)
           END AS counted_seconds,
           coalesce((SELECT sum(dispatched + running)::int FROM job_counts
                     WHERE tenant_id = asked.id AND pool = %(pool)s), 0) AS in_flight
    FROM unnest(%(ids)s::bigint[]) AS asked (id)
    LEFT JOIN tenants AS tenant ON tenant.id = asked.id
    LEFT JOIN tenant_limits AS limits
        ON limits.tenant_id = asked.id AND limits.pool = %(pool)s
    LEFT JOIN shares AS share
        ON share.tenant_id = asked.id AND share.pool = %(pool)s
    CROSS JOIN LATERAL (SELECT coalesce(
        share.updated_at > now() - interval '{GAP_SECONDS:g} seconds', false)) AS fresh (share)
"""
READ_CHANGED = f"""
    SELECT clock_timestamp() AS looked_at, coalesce(array_agg(id), '{{}}') AS tenant_ids
    FROM tenants WHERE changed_at > %(since)s::timestamptz - interval '{LATE_SECONDS:g} seconds'
"""
READ_IN_FLIGHT = """
    SELECT asked.id AS tenant_id,
           coalesce((SELECT sum(dispatched + running)::int FROM job_counts
                     WHERE tenant_id = asked.id AND pool = %(pool)s), 0) AS in_flight
    FROM unnest(%(ids)s::bigint[]) AS asked (id)
"""
READ_VIRTUAL_TIME = "SELECT pool, pass AS virtual_time FROM shares WHERE tenant_id = 0"
#: Mean duration of a pool's jobs, as far as their types were measured.
READ_TYPICAL = """
    SELECT pool, sum(mean_seconds * runs) / sum(runs) AS seconds FROM job_types
    WHERE mean_seconds IS NOT NULL AND runs > 0 GROUP BY pool
"""


@dataclass(slots=True)
class PoolQueue:
    """The queue of one pool."""

    fair: FairQueue
    #: Where the queued jobs of each lane are; a lane of ``fair`` without an entry gives nothing.
    heads: dict[LaneKey, LaneHeads] = field(default_factory=dict)
    #: Usage that each tenant's pass includes: up to so many slot-seconds of this day.
    counted: dict[int, tuple[date, float]] = field(default_factory=dict)
    #: Tenants with something in flight, or since the last reconciliation.
    active: set[int] = field(default_factory=set)
    #: Free accounts with something in flight.
    active_free: set[int] = field(default_factory=set)
    #: Jobs dispatched since the last reconciliation, by tenant.
    started: dict[int, int] = field(default_factory=dict)
    throttled: frozenset[int] = frozenset()
    #: Tenants that are free accounts.
    free: set[int] = field(default_factory=set)
    #: Tenants with recent arrivals.
    recent: set[int] = field(default_factory=set)
    #: Tenants whose jobs in flight have to be counted again.
    unconfirmed: set[int] = field(default_factory=set)
    #: Whether any tenant had to wait for a slot since the last reconciliation.
    contended: bool = False
    #: A sweep found jobs, and lanes are left: they are served whatever the counts say.
    swept: bool = False
    #: Since when the counts say that jobs wait, but no lane is known.
    without_lanes_since: float | None = None

    def remove_lane(self, lane: LaneKey) -> None:
        """It gave fewer jobs than requested."""
        self.fair.remove_lane(*lane)
        self.heads.pop(lane, None)

    def clear(self) -> None:
        """No lane has jobs."""
        self.fair.clear()
        self.heads.clear()
        self.without_lanes_since = None


class PoolQueues(RoleQueries, dict[str, PoolQueue]):
    """By the name of the pool."""

    def __init__(self, engine: Engine, leader: Leader, folder: CountFolder | None = None) -> None:
        super().__init__(engine, leader)
        #: Knows which arrivals need not be looked for any more.
        self._folder = folder or CountFolder(engine)
        self._epoch: int | None = None
        self._sweep_due = 0.0
        self._changes_due = 0.0
        self._forget_due = 0.0
        #: When changes were read last, by the database's clock.
        self._changed_at: datetime | None = None
        #: Arrivals up to this one were taken.
        self._taken = Drawn()

    @property
    def current(self) -> bool:
        """Whether they were read in this term of leadership."""
        return self._epoch is not None and self._epoch == self._leader.epoch

    def refresh(self, now: float, throttled: Mapping[str, Collection[int]]) -> bool:
        """Take the arrivals and read what changed about the tenants; whether jobs were found."""
        try:
            with connect(self._engine) as connection:
                found = self._refresh(connection, now, throttled)
        except BaseException:
            self.sweep_soon()  # the arrivals that were taken are lost
            raise
        if now >= self._forget_due:
            self._forget_due = now + FORGET_SECONDS
            self._drop_idle_tenants()
        return found

    def _refresh(
        self, connection: Connection, now: float, throttled: Mapping[str, Collection[int]]
    ) -> bool:
        if not self.current:
            self._begin(connection)
            self.sweep_soon()
        arrived = self._take_arrivals(connection)
        if now >= self._sweep_due:
            self._sweep(connection, arrived)
            self._sweep_due = now + SWEEP_SECONDS
        changes = self._read_changes(connection) if now >= self._changes_due else None
        changed = set(changes.tenant_ids) if changes is not None else set()
        for pool, lanes in arrived.items():
            self._update(connection, pool, lanes, changed, frozenset(throttled.get(pool, ())))
        if changes is not None:  # not before they are taken over: what failed is read again
            self._changed_at = changes.looked_at
            self._changes_due = now + CHANGES_SECONDS
        return any(arrived.values())

    def _take_arrivals(self, connection: Connection) -> dict[str, dict[LaneKey, LaneHeads]]:
        """The lanes that jobs arrived in, with all that is known of where its jobs are."""
        arrived: dict[str, dict[LaneKey, LaneHeads]] = {pool: {} for pool in POOLS}
        finished = self._folder.finished
        parameters = {
            "epoch": self._leader.epoch or 0,
            "server": self._taken.server,
            "taken": self._taken.arrival,
        }
        arrivals = PREPARED.execute(connection, parameters)
        columns = ("pool", "tenant_id", "dependency", "priority", "first_id", "last_id")
        rows = arrivals.columns(*columns).all()
        for pool, tenant_id, lane, priority, first, last in rows:
            if pool not in arrived:  # it was removed from the configuration
                continue
            if priority is None:  # noted before arrivals said where
                self.sweep_soon()
                continue
            key = (tenant_id, lane)
            heads = arrived[pool].get(key) or self[pool].heads.get(key) or LaneHeads()
            heads.add(priority, first, last)
            arrived[pool][key] = heads
        if len(rows) >= MOST_ARRIVALS:
            connection.exec_driver_sql(DISCARD_ARRIVALS, parameters)
            self.sweep_soon()
        else:
            self._taken = finished
        return arrived

    def _sweep(self, connection: Connection, arrived: dict[str, dict[LaneKey, LaneHeads]]) -> None:
        """Read the first job of every lane and priority: all that is there is behind it."""
        asked = {"pools": list(POOLS), "after": [-1] * len(POOLS)}
        swept: set[tuple[str, LaneKey]] = set()
        for row in connection.exec_driver_sql(SWEEP, asked):
            key = (row.tenant_id, row.dependency)
            if (row.pool, key) not in swept:
                swept.add((row.pool, key))
                arrived[row.pool][key] = LaneHeads()
                self[row.pool].swept = True
            arrived[row.pool][key].add(row.priority, row.id, OPEN)

    def refresh_caps(self, pool: str) -> None:
        """Count what waiting tenants at their cap, and free accounts, have in flight now."""
        queue = self[pool]
        asked = {*queue.fair.at_cap(), *queue.active_free, *queue.unconfirmed}
        if not asked:
            return
        rows = self._read(READ_IN_FLIGHT, pool=pool, ids=list(asked))
        queue.unconfirmed.clear()
        for row in rows:
            if queue.fair.has_tenant(row.tenant_id):
                queue.fair.set_in_flight(row.tenant_id, row.in_flight)
            if row.in_flight and row.tenant_id in queue.free:
                queue.active_free.add(row.tenant_id)
            elif not row.in_flight:
                queue.active_free.discard(row.tenant_id)

    def sweep_soon(self) -> None:
        """Read all lanes in the next turn: arrivals were missed."""
        self._sweep_due = 0.0

    def _begin(self, connection: Connection) -> None:
        """Replace what is left of an earlier term by what the tables say."""
        times = {
            row.pool: row.virtual_time for row in connection.exec_driver_sql(READ_VIRTUAL_TIME)
        }
        typical = {row.pool: row.seconds for row in connection.exec_driver_sql(READ_TYPICAL)}
        for pool in POOLS:
            seconds = typical.get(pool) or default_seconds(pool)
            self[pool] = PoolQueue(FairQueue(seconds, times.get(pool, 0.0)))
        self._taken = Drawn()
        self._changed_at = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        self._epoch = self._leader.epoch

    def _read_changes(self, connection: Connection) -> Row[Any]:
        """Tenants that changed since the last read, however long ago it was."""
        return connection.exec_driver_sql(READ_CHANGED, {"since": self._changed_at}).one()

    def _update(
        self,
        connection: Connection,
        pool: str,
        lanes: dict[LaneKey, LaneHeads],
        changed: set[int],
        throttled: frozenset[int],
    ) -> None:
        queue = self[pool]
        changed = changed | (throttled ^ queue.throttled)
        known = {each for each in changed if queue.fair.has_tenant(each)}
        new = {tenant_id for tenant_id, _ in lanes if not queue.fair.has_tenant(tenant_id)}
        self._load_tenants(connection, pool, known | new, throttled)
        queue.throttled = throttled
        queue.heads.update(lanes)
        for tenant_id, lane in lanes:
            queue.fair.add_lane(tenant_id, lane)
            queue.recent.add(tenant_id)

    def _drop_idle_tenants(self) -> None:
        """Otherwise every tenant that ever had a job would be kept in memory."""
        for queue in self.values():
            for tenant_id in queue.counted.keys() - queue.recent - queue.active:
                if queue.fair.remove_tenant(tenant_id):
                    del queue.counted[tenant_id]
                    for kept in (queue.free, queue.active_free, queue.unconfirmed):
                        kept.discard(tenant_id)
            queue.recent = set(queue.active)

    def _load_tenants(
        self, connection: Connection, pool: str, tenant_ids: set[int], throttled: Collection[int]
    ) -> None:
        """Read their claims; what a tenant has been served is read only once."""
        if not tenant_ids:
            return
        queue = self[pool]
        rows = connection.exec_driver_sql(
            READ_TENANTS, {"pool": pool, "ids": sorted(tenant_ids)}
        ).all()
        for row in rows:
            tenant_id, cap, free = row.tenant_id, row.cap, row.tier == Tier.FREE
            if tenant_id in throttled:
                cap = THROTTLED_IN_FLIGHT if cap is None else min(THROTTLED_IN_FLIGHT, cap)
            entitlement = entitlement_of(Tier(row.tier), row.weight, row.share)
            claim = TenantClaim(entitlement, free=free, cap=cap)
            if queue.fair.has_tenant(tenant_id):
                queue.fair.set_tenant(tenant_id, claim)
            else:
                queue.fair.set_tenant(tenant_id, claim, served=row.served)
                queue.counted[tenant_id] = (row.counted_day, float(row.counted_seconds))
                queue.recent.add(tenant_id)
                # What it used since an earlier leader counted is read next.
                queue.active.add(tenant_id)
            queue.fair.set_in_flight(tenant_id, row.in_flight)
            (queue.free.add if free else queue.free.discard)(tenant_id)
            if free and row.in_flight:
                queue.active_free.add(tenant_id)
