"""Held back: what the dispatcher must leave queued for now, although slots are free.

Lanes of dependencies whose circuit is not closed or whose quota is spent, and tenants whose
jobs keep killing the workers of a pool. Circuits and throttles are written by the scheduler's
guards; here they are only read.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from sqlalchemy import Engine

from models.jobs.held_back import CIRCUIT_NOT_CLOSED, THROTTLED
from models.presence import NEWS_SECONDS
from models.store.prepared import PreparedStatement
from models.store.session import fetch
from tasks.retry.circuit import OPEN_SECONDS, PROBES

#: Circuits and throttles change by the second, not by the turn.
READ_SECONDS = 0.25

#: A run that began before the circuit changed is no probe: an hour of work that is under way
#: must not keep the dependency from being called.
READ_HOLDS = f"""
    SELECT 'lane' AS kind, dependency AS name, 0 AS tenant_id, CASE
        WHEN state = 'open' OR changed_at > now() - interval '{NEWS_SECONDS:g} seconds' THEN 0
        ELSE {PROBES} - (
            SELECT count(*) FROM jobs
            WHERE status IN ('dispatched', 'running') AND jobs.dependency = circuits.dependency
              AND dispatched_at >= circuits.changed_at) END AS allowed,
        CASE state WHEN 'half_open' THEN
            date_bin(interval '{OPEN_SECONDS:g} s', now(), changed_at) END AS period
    FROM circuits WHERE {CIRCUIT_NOT_CLOSED}
    UNION ALL
    SELECT 'tenant', pool, tenant_id, 0, NULL FROM ({THROTTLED}) AS throttled
"""
PREPARED = PreparedStatement("read_holds", READ_HOLDS)


#: Jobs that each dependency with a quota accepts at a time.
Allowances = Callable[[float], Mapping[str, int]]


@dataclass(frozen=True, slots=True)
class Holds:
    """What is held back now."""

    #: Jobs that each held lane may give now; 0 for an open circuit, one probe for a half-open one.
    lanes: dict[str, int] = field(default_factory=dict)
    #: Throttled tenants by pool.
    tenants: dict[str, set[int]] = field(default_factory=dict)
    #: Lanes that may give a probe, and those of each tenant so far. The dispatcher counts them.
    probes: dict[str, Counter[int]] = field(default_factory=dict)


class HoldReader:
    """Reads the holds, not more often than they change."""

    def __init__(self, engine: Engine, allowances: Allowances = lambda _: {}) -> None:
        self._engine = engine
        self._allowances = allowances
        self._due = 0.0
        self._holds = Holds()
        #: Of this process: a new leader counts anew.
        self._probes: dict[tuple[str, datetime], Counter[int]] = {}

    def read(self, now: float) -> Holds:
        """The holds in force; probes and quotas are counted afresh each time."""
        if now >= self._due or self._holds.lanes:
            self._holds = self._read_holds()
            self._due = now + READ_SECONDS
        lanes = dict(self._holds.lanes)
        for dependency, jobs in self._allowances(now).items():
            lanes[dependency] = min(jobs, lanes.get(dependency, jobs))
        return Holds(lanes, self._holds.tenants, self._holds.probes)

    def _read_holds(self) -> Holds:
        holds = Holds()
        probes: dict[tuple[str, datetime], Counter[int]] = {}
        for row in fetch(self._engine, PREPARED):
            if row.kind == "tenant":
                holds.tenants.setdefault(row.name, set()).add(row.tenant_id)
                continue
            holds.lanes[row.name] = min(1, max(0, int(row.allowed)))
            if row.period is not None:
                period = row.name, row.period
                probes[period] = self._probes.get(period, Counter())
                if holds.lanes[row.name]:
                    holds.probes[row.name] = probes[period]
        self._probes = probes
        return holds
