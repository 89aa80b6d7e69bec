"""``/console/limits``: what holds jobs back, and what is known of them: circuits, quotas,
verdicts, measured types, express lanes and predictions.

Read-only. The scheduler decides these; what an operator can change is changed by a command or a
call of the API, and the page says by which.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection

from app.api.http.state import read_state
from app.api.services import current_services
from app.console.page import LivePage, PageRequest
from app.reads.gauges import FORECAST_ERROR, FORECASTS
from app.tenants.quotas import Declared, read_quotas
from models.jobs.admit import PERMISSION_SECONDS
from models.leadership import RELIEVES
from models.pools import POOLS
from tasks.retry.circuit import OPEN_SECONDS, PROBES
from tasks.retry.quarantine import QUARANTINE_TRIES

#: Rows shown of each kind.
MOST = 200

READ_CIRCUITS = "SELECT dependency, state, changed_at FROM circuits"
#: What waits for each dependency, over all tenants.
READ_WAITING = """
    SELECT dependency, sum(queued)::bigint AS queued FROM job_counts
    WHERE tenant_id = 0 AND dependency <> '' GROUP BY dependency
"""
READ_TOKENS = "SELECT dependency, calls, tokens_in, tokens_out FROM quotas"
READ_VERDICTS = f"""
    SELECT verdict.*, tenant.name AS tenant
    FROM verdicts AS verdict LEFT JOIN tenants AS tenant ON tenant.id = verdict.tenant_id
    ORDER BY since DESC, kind, verdict.name, tenant_id, pool LIMIT {MOST + 1}
"""
READ_TYPES = f"""
    SELECT type, declared_pool, pool, moved_at, mean_seconds, p95_seconds, runs
    FROM job_types ORDER BY moved_at IS NULL, type LIMIT {MOST + 1}
"""
READ_LANES = f"""
    SELECT pool, credit > 0 AND granted_at > now() - interval '{PERMISSION_SECONDS} seconds' AS open
    FROM express_lanes
"""
READ_RELIEF = f"SELECT holder FROM leaders WHERE {RELIEVES}"
READ_FORECASTS = f"""
    SELECT name AS pool, sum(total)::bigint AS made, ({FORECAST_ERROR})::float8 AS error
    FROM tallies WHERE {FORECASTS}
    GROUP BY name HAVING sum(total) > 0
"""
KINDS = {
    "requests": "calls",
    "tokens": "tokens",
    "tokens_in": "tokens in",
    "tokens_out": "tokens out",
}


@dataclass(frozen=True, slots=True)
class CircuitView:
    """A dependency and whether it is asked."""

    dependency: str
    state: str
    changed_at: datetime | None
    #: Jobs that need it and wait in their lines.
    waiting: int


@dataclass(frozen=True, slots=True)
class LimitView:
    """One limit of a quota."""

    kind: str
    declared: float | None
    learned: float | None
    remaining: float | None


@dataclass(frozen=True, slots=True)
class QuotaView:
    """What a dependency takes in a minute."""

    dependency: str
    limits: Sequence[LimitView]
    read_at: datetime | None
    closed_until: datetime | None
    refused: int
    calls: int
    tokens_in: int
    tokens_out: int


def read_limits(asked: PageRequest) -> dict[str, Any]:
    """Everything on the page."""
    declared = {one.dependency for one in current_services().types.values() if one.dependency}
    with read_state() as connection:
        waiting = {row.dependency: row.queued for row in connection.exec_driver_sql(READ_WAITING)}
        verdicts = connection.exec_driver_sql(READ_VERDICTS).all()
        types = connection.exec_driver_sql(READ_TYPES).all()
        lanes = {row.pool: row.open for row in connection.exec_driver_sql(READ_LANES)}
        return {
            "circuits": circuit_views(connection, declared, waiting),
            "quotas": quota_views(connection),
            "verdicts": [(row, said_of(row)) for row in verdicts[:MOST]],
            "types": types[:MOST],
            "cut": len(verdicts) > MOST or len(types) > MOST,
            "most": MOST,
            "lanes": {pool: lanes.get(pool, False) for pool in POOLS},
            "relief": connection.exec_driver_sql(READ_RELIEF).scalar(),
            "forecasts": {row.pool: row for row in connection.exec_driver_sql(READ_FORECASTS)},
            "open_seconds": OPEN_SECONDS,
            "probes": PROBES,
        }


def circuit_views(
    connection: Connection, declared: set[str], waiting: Mapping[str, int]
) -> list[CircuitView]:
    """All dependencies of job types; one without a row was never in trouble."""
    known = {row.dependency: row for row in connection.exec_driver_sql(READ_CIRCUITS)}
    return [
        CircuitView(
            name,
            known[name].state if name in known else "closed",
            known[name].changed_at if name in known else None,
            waiting.get(name, 0),
        )
        for name in sorted(declared | known.keys())
    ]


def quota_views(connection: Connection) -> list[QuotaView]:
    """All quotas that say something."""
    used = {row.dependency: row for row in connection.exec_driver_sql(READ_TOKENS)}
    return [
        QuotaView(
            quota.dependency,
            limit_views(quota),
            quota.read_at,
            quota.closed_until,
            quota.refused,
            used[quota.dependency].calls if quota.dependency in used else 0,
            used[quota.dependency].tokens_in if quota.dependency in used else 0,
            used[quota.dependency].tokens_out if quota.dependency in used else 0,
        )
        for quota in read_quotas(connection)
    ]


def limit_views(quota: Declared) -> list[LimitView]:
    """The limits that anybody knows of."""
    declared = {
        "requests": quota.requests_per_minute,
        "tokens_in": quota.tokens_in_per_minute,
        "tokens_out": quota.tokens_out_per_minute,
    }
    views = []
    for kind, words in KINDS.items():
        learned, remaining, _ = quota.reading.get(kind, (None, None, None))
        if declared.get(kind) is not None or learned is not None:
            views.append(LimitView(words, declared.get(kind), learned, remaining))
    return views


def said_of(verdict: Any) -> str:
    """What a verdict means for jobs."""
    detail = verdict.detail if isinstance(verdict.detail, dict) else {}
    if verdict.kind == "quarantine":
        return (
            f"{detail.get('failed', '?')} of {detail.get('runs', '?')} runs failed within an hour:"
            f" its jobs have {QUARANTINE_TRIES} tries until fewer fail."
        )
    if verdict.kind == "throttle":
        return (
            f"{detail.get('crashes', '?')} workers of {verdict.pool} were lost with its"
            " jobs: it runs one at a time there until ten minutes pass without."
        )
    if verdict.kind == "spike":
        return (
            f"{detail.get('runs', '?')} runs in this hour, {detail.get('usual', '?')} are usual."
            " Its tenant was told; nothing is held back."
        )
    return ""


LIMITS = LivePage("/console/limits", "console/limits.html", read_limits, every_seconds=3.0)
