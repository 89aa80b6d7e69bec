"""Holds: what the dispatcher must leave in the line for now.

Lanes of dependencies whose circuit is not closed, and tenants whose jobs keep killing the
workers of a pool. Both are rows that the Warden writes; here they are only read.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Engine

from models.presence import PRESENCE_SECONDS
from models.session import connection
from tasks.retry import throttle
from tasks.retry.circuit import PROBES

#: Circuits and verdicts change by the second, not by the turn.
READ_SECONDS = 0.25

#: Workers hear of a change with their next sign of life; until then they hand probes back.
NEWS_SECONDS = PRESENCE_SECONDS + 0.5

#: A run that began before the circuit changed is no probe: an hour of work that is under way
#: must not keep the dependency from being asked.
READ_HOLDS = f"""
    SELECT 'lane', dependency, 0, CASE
        WHEN state = 'open' OR changed_at > now() - interval '{NEWS_SECONDS:g} seconds' THEN 0
        ELSE {PROBES} - (
            SELECT count(*) FROM jobs
            WHERE status IN ('dispatched', 'running') AND jobs.dependency = circuits.dependency
              AND dispatched_at >= circuits.changed_at) END, 0
    FROM circuits WHERE state <> 'closed'
    UNION ALL
    SELECT 'tenant', tenant.pool, tenant.id,
           {throttle.IN_FLIGHT} - coalesce(sum(counts.dispatched + counts.running), 0),
           coalesce(sum(counts.queued), 0)
    FROM verdicts, LATERAL (SELECT split_part(name, ':', 1)::bigint, split_part(name, ':', 2))
        AS tenant (id, pool)
    LEFT JOIN job_counts AS counts ON counts.tenant_id = tenant.id AND counts.pool = tenant.pool
    WHERE verdicts.kind = 'throttle'
    GROUP BY tenant.pool, tenant.id
"""


@dataclass(frozen=True, slots=True)
class Throttled:
    """A tenant under throttle in one pool."""

    #: Jobs that it may still have in flight.
    room: int
    #: Jobs that it has in the line.
    queued: int


@dataclass(frozen=True, slots=True)
class Holds:
    """What is held back now."""

    #: Jobs that each held lane may still give; 0 for an open circuit.
    lanes: dict[str, int] = field(default_factory=dict)
    #: Throttled tenants by pool.
    tenants: dict[str, dict[int, Throttled]] = field(default_factory=dict)


class HoldReader:
    """Reads the holds, not more often than they change."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._due = 0.0
        self._holds = Holds()

    def read(self, now: float) -> Holds:
        """The holds in force; probes and throttled tenants are counted afresh each time."""
        if now >= self._due or self._holds.lanes or self._holds.tenants:
            self._holds = self._look()
            self._due = now + READ_SECONDS
        return self._holds

    def _look(self) -> Holds:
        holds = Holds()
        with connection(self._engine) as taken:
            rows = taken.exec_driver_sql(READ_HOLDS).all()
        for kind, name, tenant_id, room, queued in rows:
            if kind == "lane":
                holds.lanes[name] = max(0, int(room))
            else:
                found = Throttled(max(0, int(room)), int(queued))
                holds.tenants.setdefault(name, {})[tenant_id] = found
        return holds
