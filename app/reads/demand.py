"""The demand for a pool: jobs that wait for a slot, how long, and what is in flight.

The first of each lane and priority by id is read, each one step along the index: the cost grows
with the number of lanes, not with what waits in them. With very many a read covers some of them
and the next one goes on from there; an age may then be some reads old. How much waits is taken from
counters; what is subtracted for tenants at their cap is exact only up to MOST_COUNTED.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from itertools import islice

from sqlalchemy import Connection

from models.jobs.lane_walk import head_walk
from models.store.prepared import BY_INDEX, PreparedStatement

#: Heads that one look goes over.
MOST_HEADS = 1000
#: Jobs of tenants at their cap that are looked for in limited lanes, and those tenants.
MOST_COUNTED = 10_000
MOST_CAPPED = 1000

QUEUE_HEADS = head_walk()
#: In one pool the oldest that only a slot could help: not in a held lane, nor of a tenant at its
#: cap, nor of a free account where those together have all that they may. The heads come in
#: order, so the last tenant is the highest.
READ_WAITS = f"""{QUEUE_HEADS}
    SELECT extract(epoch FROM min(seen.since) FILTER (WHERE
               seen.dependency <> ALL (%(held)s::text[])
               AND seen.tenant_id <> ALL (%(capped)s::bigint[])
               AND NOT (%(free_full)s AND coalesce(tenant.tier, '') = 'free')))::float8 AS since,
           extract(epoch FROM now())::float8 AS now, count(*) AS heads,
           max(seen.tenant_id) AS last_tenant
    FROM (SELECT * FROM head LIMIT {MOST_HEADS}) AS seen
    LEFT JOIN tenants AS tenant ON tenant.id = seen.tenant_id
"""
PREPARED = PreparedStatement("read_waits", READ_WAITS, settings=BY_INDEX)
#: What is in flight on the shared workers: running jobs, all jobs of free accounts, and how long
#: the oldest that does not run yet has waited in all.
READ_FLIGHT = """
    SELECT job.pool, count(*) FILTER (WHERE job.status = 'running') AS running,
           count(*) FILTER (WHERE tenant.tier = 'free') AS free,
           coalesce(extract(epoch FROM now() - min(greatest(job.created_at, job.execute_at))
               FILTER (WHERE job.status = 'dispatched')), 0)::float8 AS oldest_seconds
    FROM jobs AS job LEFT JOIN tenants AS tenant ON tenant.id = job.tenant_id
    WHERE job.status IN ('dispatched', 'running') AND job.slice = ''
    GROUP BY job.pool
"""
#: Queued jobs by dependency; all tenants together.
READ_DEPTHS = """
    SELECT pool, dependency, sum(queued)::bigint AS queued FROM job_counts WHERE tenant_id = 0
    GROUP BY pool, dependency HAVING sum(queued) > 0
"""
READ_TENANT_DEPTHS = """
    SELECT asked.pool, sum(counts.queued)::bigint AS queued
    FROM unnest(%(pools)s::text[], %(capped)s::bigint[]) AS asked (pool, tenant_id)
    JOIN job_counts AS counts USING (pool, tenant_id) GROUP BY asked.pool
"""
#: What of that is in limited lanes; a tenant's counters are not by lane.
READ_TENANT_LANES = f"""
    SELECT pool, count(*) AS queued FROM (
        SELECT asked.pool
        FROM unnest(%(pools)s::text[], %(capped)s::bigint[]) AS asked (pool, tenant_id),
             unnest(%(lanes)s::text[]) AS lane (dependency),
             LATERAL (SELECT FROM jobs
                      WHERE status = 'queued' AND jobs.pool = asked.pool
                        AND jobs.tenant_id = asked.tenant_id
                        AND jobs.dependency = lane.dependency
                      ORDER BY priority DESC, id LIMIT {MOST_COUNTED}) AS waiting
        LIMIT {MOST_COUNTED}) AS counted
    GROUP BY pool
"""


@dataclass(frozen=True, slots=True)
class Parked:
    """What waits for something else than a slot."""

    #: Jobs that each held lane may still give: no more of it waits for a slot.
    lanes: Mapping[str, int]
    #: Tenants at their cap, by pool.
    capped: Mapping[str, Collection[int]]
    #: Free accounts, as far as they are known, by the pools in which they have all that they may,
    #: or dedicated workers.
    free_full: Mapping[str, Collection[int]] = field(default_factory=dict)

    def in_pool(self, pool: str) -> dict[str, object]:
        """Parameters of READ_WAITS."""
        return {
            "held": [lane for lane, room in self.lanes.items() if room <= 0],
            "capped": list(self.capped.get(pool, ())),
            "free_full": pool in self.free_full,
        }

    def tenants(self, pool: str) -> set[int]:
        """Tenants that can use no slot of the shared workers."""
        return {*self.capped.get(pool, ()), *self.free_full.get(pool, ())}


def read_depths(connection: Connection, parked: Parked) -> dict[str, int]:
    """Queued jobs that only lack a slot, by pool, as far as they can be counted.

    Pools in which every lane is held are left out. 0 does not mean that none waits.
    """
    depths: dict[str, int] = {}
    for pool, dependency, queued in connection.exec_driver_sql(READ_DEPTHS):
        waiting = min(queued, max(0, parked.lanes.get(dependency, queued)))
        if waiting:
            depths[pool] = depths.get(pool, 0) + waiting
    kept = read_kept(connection, parked) if depths else {}
    return {pool: max(0, depth - kept.get(pool, 0)) for pool, depth in depths.items()}


def read_kept(connection: Connection, parked: Parked) -> dict[str, int]:
    """Jobs in lanes that are not limited, of tenants that may have no more, by pool."""
    pairs = [
        (pool, tenant_id)
        for pool in {*parked.capped, *parked.free_full}
        for tenant_id in islice(parked.tenants(pool), MOST_CAPPED)
    ]
    if not pairs:
        return {}
    pools, capped = zip(*pairs, strict=True)
    asked = {"pools": list(pools), "capped": list(capped), "lanes": list(parked.lanes)}
    kept = {row.pool: row.queued for row in connection.exec_driver_sql(READ_TENANT_DEPTHS, asked)}
    if parked.lanes:
        # In there they were not counted as waiting, so there is nothing to subtract.
        for pool, queued in connection.exec_driver_sql(READ_TENANT_LANES, asked):
            kept[pool] -= queued
    return kept


@dataclass(slots=True)
class QueueWatch:
    """Reads the queue of one pool, some of it at a time."""

    pool: str
    #: Where the next read begins.
    after: int = 0
    #: When the oldest jobs of this round began to wait, and of the last if it took several reads.
    found: list[float] = field(default_factory=list)
    before: list[float] = field(default_factory=list)

    def oldest_seconds(self, connection: Connection, parked: Parked) -> float | None:
        """How long the oldest waits for a slot; None if none does."""
        asked = {"pools": [self.pool], "after": [self.after], **parked.in_pool(self.pool)}
        seen = PREPARED.execute(connection, asked).one()
        self.found += [] if seen.since is None else [seen.since]
        oldest = min([*self.found, *self.before], default=None)
        if seen.heads < MOST_HEADS:
            oldest = min(self.found, default=None)
            self.before = self.found if self.after else []
            self.after, self.found = 0, []
        else:
            # The last tenant may have more lanes, unless it filled the read alone.
            self.after = max(self.after + 1, seen.last_tenant - 1)
        return None if oldest is None else max(0.0, seen.now - oldest)
