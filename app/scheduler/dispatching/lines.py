"""Lines: whose jobs wait in which pool, as the leader knows it.

The tables know it too, but asking them costs a step for each tenant. So the leader keeps the
lines in memory: a bell (table ``arrivals``) rings in the transaction of whatever joins a line,
and a lane that gave fewer jobs than it was asked for is empty until its bell rings. Bells are
taken before the lines are picked from: a job whose bell is not heard yet is heard next time.

Everything is read anew by a leader that takes over, and the lanes once in a while by each.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import date, datetime

from sqlalchemy import Connection, Engine

from app.policy.fairshare import FairLine, TenantClaim, Tier, default_seconds, entitlement_of
from models.jobs.lane_walk import lane_walk
from models.leadership import STILL_LEADER, Leader
from models.pools import POOLS
from models.store.session import connect
from tasks.retry import throttle

logger = logging.getLogger(__name__)

#: Everything is looked at again this often: what no bell told of is found by then.
SWEEP_SECONDS = 30.0
#: Bells taken in one turn. More of them are a pile.
MOST_BELLS = 20_000
#: Who was not heard of for so long is forgotten; the table knows its share.
FORGET_SECONDS = 600.0
#: Changes of tenants are looked for this often.
CHANGES_SECONDS = 1.0
#: From one leader to the next at most; usage of a longer gap is nobody's debt.
GAP_SECONDS = 120.0
#: A change may have been made this long before it can be seen.
LATE_SECONDS = 10.0

#: As many as a turn can bear: while nobody leads they pile up.
TAKE_BELLS = f"""
    DELETE FROM arrivals
    WHERE ctid = ANY (ARRAY(SELECT ctid FROM arrivals WHERE {STILL_LEADER} LIMIT {MOST_BELLS}))
    RETURNING pool, tenant_id, dependency
"""
#: A pile is thrown away at once, and all lanes are looked at instead. Whoever is about to ring
#: is waited for, but not for long: the front door waits behind us.
DROP_BELLS = f"""
    DO $$ BEGIN
        IF {STILL_LEADER} THEN
            SET LOCAL lock_timeout = '200ms';
            TRUNCATE arrivals;
        END IF;
    EXCEPTION WHEN lock_not_available THEN NULL;
    END $$
"""
SWEEP = f"{lane_walk()} SELECT tenant_id, dependency FROM lane"
#: What a share was counted up to, if it was a moment ago: by a leader that is gone. Otherwise
#: counting begins now: whatever was used meanwhile, nobody else wanted.
READ_STANDINGS = f"""
    SELECT asked.id AS tenant_id, coalesce(tenant.tier, 'standard') AS tier, tenant.weight,
           limits.in_flight AS cap, share.pass AS served,
           CASE WHEN fresh.share THEN share.counted_day ELSE current_date END AS counted_day,
           CASE WHEN fresh.share THEN share.counted_seconds ELSE coalesce((
               SELECT sum(slot_seconds - slice_seconds) FROM usage
               WHERE tenant_id = asked.id AND pool = %(pool)s AND day = current_date), 0)
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
#: What a job of a pool takes in the mean, as far as its types were measured.
READ_TYPICAL = """
    SELECT pool, sum(mean_seconds * runs) / sum(runs) AS seconds FROM job_types
    WHERE mean_seconds IS NOT NULL AND runs > 0 GROUP BY pool
"""


@dataclass(slots=True)
class PoolLine:
    """One pool's line."""

    fair: FairLine
    #: Usage of each known tenant that its pass contains: up to this much of this day.
    counted: dict[int, tuple[date, float]] = field(default_factory=dict)
    #: Tenants with something in flight, or since the last reconciliation.
    flying: set[int] = field(default_factory=set)
    #: Free accounts with something in flight.
    free_flying: set[int] = field(default_factory=set)
    #: Jobs dispatched since the last reconciliation, by tenant.
    started: dict[int, int] = field(default_factory=dict)
    throttled: frozenset[int] = frozenset()
    #: Of the known tenants, the free accounts.
    free: set[int] = field(default_factory=set)
    #: Tenants that were heard of lately.
    recent: set[int] = field(default_factory=set)
    #: Tenants of which it is not sure what they have in flight.
    doubtful: set[int] = field(default_factory=set)
    #: Whether anybody had to wait for a slot since the last reconciliation.
    contended: bool = False


class Lines:
    """The lines of all pools."""

    def __init__(self, engine: Engine, leader: Leader) -> None:
        self._engine = engine
        self._leader = leader
        self._epoch: int | None = None
        self._lines: dict[str, PoolLine] = {}
        self._sweep_due = 0.0
        self._changes_due = 0.0
        self._forget_due = 0.0
        #: When changes were looked for last, by the database's clock.
        self._changed_at: datetime | None = None

    @property
    def current(self) -> bool:
        """Whether they are of this term; those of an earlier one say nothing any more."""
        return self._epoch is not None and self._epoch == self._leader.epoch

    def __getitem__(self, pool: str) -> PoolLine:
        return self._lines[pool]

    def __contains__(self, pool: str) -> bool:
        return pool in self._lines

    def items(self) -> list[tuple[str, PoolLine]]:
        """Every pool with its line."""
        return list(self._lines.items())

    def listen(self, now: float, throttled: Mapping[str, Collection[int]]) -> None:
        """Take the bells and what changed about the tenants."""
        try:
            with connect(self._engine) as connection:
                self._listen(connection, now, throttled)
        except BaseException:
            # The bells that were taken are lost with it.
            self._sweep_due = 0.0
            raise
        if now >= self._forget_due:
            self._forget_due = now + FORGET_SECONDS
            self._forget()

    def _listen(
        self, connection: Connection, now: float, throttled: Mapping[str, Collection[int]]
    ) -> None:
        if not self.current:
            self._begin(connection)
            self._sweep_due = 0.0
        rung = self._take_bells(connection)
        if now >= self._sweep_due:
            for pool in POOLS:
                rung[pool].update(self._sweep(connection, pool))
            self._sweep_due = now + SWEEP_SECONDS
        changed = self._read_changes(connection, now)
        for pool, lanes in rung.items():
            self._throttle(connection, pool, frozenset(throttled.get(pool, ())))
            self._arrive(connection, pool, lanes, changed)

    def _take_bells(self, connection: Connection) -> dict[str, set[tuple[int, str]]]:
        rung: dict[str, set[tuple[int, str]]] = {pool: set() for pool in POOLS}
        epoch = {"epoch": self._leader.epoch or 0}
        bells = connection.exec_driver_sql(TAKE_BELLS, epoch)
        rows = bells.columns("pool", "tenant_id", "dependency").all()
        for pool, tenant_id, lane in rows:
            if pool in rung:  # one that was taken out of the configuration has no line
                rung[pool].add((tenant_id, lane))
        if len(rows) >= MOST_BELLS:
            connection.exec_driver_sql(DROP_BELLS, epoch)
            self._sweep_due = 0.0
        return rung

    def refresh_caps(self, pool: str) -> None:
        """Count what waiting tenants at their cap, and free accounts, have in flight now."""
        line = self._lines[pool]
        asked = {*line.fair.at_cap(), *line.free_flying, *line.doubtful}
        if not asked:
            return
        with connect(self._engine) as connection:
            rows = connection.exec_driver_sql(
                READ_IN_FLIGHT, {"pool": pool, "ids": list(asked)}
            ).all()
        line.doubtful.clear()
        for row in rows:
            if line.fair.knows(row.tenant_id):
                line.fair.set_in_flight(row.tenant_id, row.in_flight)
            if row.in_flight and row.tenant_id in line.free:
                line.free_flying.add(row.tenant_id)
            elif not row.in_flight:
                line.free_flying.discard(row.tenant_id)

    def sweep_now(self) -> None:
        """Look at everything at the next turn: there are jobs that nobody rang for."""
        self._sweep_due = 0.0

    def _begin(self, connection: Connection) -> None:
        """Forget what an earlier term knew and begin with what the tables say."""
        times = {
            row.pool: row.virtual_time for row in connection.exec_driver_sql(READ_VIRTUAL_TIME)
        }
        typical = {row.pool: row.seconds for row in connection.exec_driver_sql(READ_TYPICAL)}
        self._lines = {
            pool: PoolLine(
                FairLine(typical.get(pool) or default_seconds(pool), times.get(pool, 0.0))
            )
            for pool in POOLS
        }
        self._changed_at = connection.exec_driver_sql("SELECT clock_timestamp()").scalar_one()
        self._epoch = self._leader.epoch

    def _sweep(self, connection: Connection, pool: str) -> set[tuple[int, str]]:
        rows = connection.exec_driver_sql(SWEEP, {"pool": pool})
        return {(row.tenant_id, row.dependency) for row in rows}

    def _read_changes(self, connection: Connection, now: float) -> set[int]:
        if now < self._changes_due:
            return set()
        row = connection.exec_driver_sql(READ_CHANGED, {"since": self._changed_at}).one()
        # Since the last look, however long ago it was.
        self._changed_at = row.looked_at
        self._changes_due = now + CHANGES_SECONDS
        return set(row.tenant_ids)

    def _throttle(self, connection: Connection, pool: str, throttled: frozenset[int]) -> None:
        line = self._lines[pool]
        if throttled == line.throttled:
            return
        changed = throttled ^ line.throttled
        line.throttled = throttled
        self._meet(connection, pool, {each for each in changed if line.fair.knows(each)})

    def _arrive(
        self, connection: Connection, pool: str, lanes: set[tuple[int, str]], changed: set[int]
    ) -> None:
        line = self._lines[pool]
        known = {each for each in changed if line.fair.knows(each)}
        strangers = {tenant_id for tenant_id, _ in lanes if not line.fair.knows(tenant_id)}
        self._meet(connection, pool, known | strangers)
        for tenant_id, lane in lanes:
            line.fair.arrive(tenant_id, lane)
            line.recent.add(tenant_id)

    def _forget(self) -> None:
        """Let go of tenants that have nothing here; else all that ever came would be kept."""
        for line in self._lines.values():
            for tenant_id in line.counted.keys() - line.recent - line.flying:
                if line.fair.forget(tenant_id):
                    del line.counted[tenant_id]
                    for kept in (line.free, line.free_flying, line.doubtful):
                        kept.discard(tenant_id)
            line.recent = set(line.flying)

    def _meet(self, connection: Connection, pool: str, tenant_ids: set[int]) -> None:
        """Learn who they are; what a tenant has been served is learned once."""
        if not tenant_ids:
            return
        line = self._lines[pool]
        rows = connection.exec_driver_sql(
            READ_STANDINGS, {"pool": pool, "ids": sorted(tenant_ids)}
        ).all()
        for row in rows:
            tenant_id, cap, free = row.tenant_id, row.cap, row.tier == Tier.FREE
            if tenant_id in line.throttled:
                cap = min(throttle.IN_FLIGHT, cap or throttle.IN_FLIGHT)
            standing = TenantClaim(entitlement_of(Tier(row.tier), row.weight), free=free, cap=cap)
            if line.fair.knows(tenant_id):
                line.fair.know(tenant_id, standing)
            else:
                line.fair.know(tenant_id, standing, served=row.served)
                line.counted[tenant_id] = (row.counted_day, float(row.counted_seconds))
                line.recent.add(tenant_id)
                # What it used since an earlier leader counted is looked up next.
                line.flying.add(tenant_id)
            line.fair.set_in_flight(tenant_id, row.in_flight)
            (line.free.add if free else line.free.discard)(tenant_id)
            if free and row.in_flight:
                line.free_flying.add(tenant_id)
