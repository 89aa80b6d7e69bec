"""``/console/limits``: circuits, quotas, restrictions, measured job types and express lanes.

Read-only. The scheduler decides these; what an operator can change is changed with a command or
the API, and the page says which.
"""

from __future__ import annotations

from collections import defaultdict
from typing import Any

from sqlalchemy import Connection

from app.api.http.state import read_state
from app.api.services import current_services
from app.console.page import PageRequest, live_page
from app.reads.gauges import FORECAST_ERROR, FORECASTS
from app.tenants.quotas import Declared, read_quotas
from models.jobs.admit import PERMISSION_SECONDS
from models.leadership import RELIEVES
from models.pools import POOLS
from tasks.retry.circuit import MIN_OUTAGES, OPEN_SECONDS, PROBES
from tasks.retry.guards import QUARANTINE_TRIES

#: Rows shown of each kind.
MOST = 200

#: All dependencies of job types, with the jobs of all tenants that wait for each; one without a
#: row has never failed.
READ_CIRCUITS = f"""
    SELECT dependency, coalesce(circuit.state, 'closed') AS state, circuit.changed_at,
           CASE circuit.state WHEN 'open' THEN
               circuit.changed_at + interval '{OPEN_SECONDS:g} s' END AS open_until,
           CASE circuit.state WHEN 'closed' THEN '' ELSE circuit.reason END AS reason,
           (SELECT coalesce(sum(queued), 0)::bigint FROM job_counts
            WHERE tenant_id = 0 AND dependency = known.dependency) AS waiting
    FROM (SELECT unnest(%(declared)s::text[]) AS dependency
          UNION SELECT dependency FROM circuits) AS known
    LEFT JOIN circuits AS circuit USING (dependency) ORDER BY dependency
"""
READ_TOKENS = "SELECT dependency, calls, tokens_in, tokens_out FROM quotas"
READ_VERDICTS = f"""
    SELECT verdict.*, tenant.name AS tenant
    FROM verdicts AS verdict LEFT JOIN tenants AS tenant ON tenant.id = verdict.tenant_id
    ORDER BY verdict.kind = 'retry_budget', since DESC,
             kind, verdict.name, tenant_id, pool LIMIT {MOST + 1}
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
#: Limits of a quota: how they are called, and the field with the declared one.
KINDS = {
    "requests": ("calls", "requests_per_minute"),
    "tokens": ("tokens", ""),
    "tokens_in": ("tokens in", "tokens_in_per_minute"),
    "tokens_out": ("tokens out", "tokens_out_per_minute"),
}
#: What a restriction means for jobs.
EFFECTS = {
    "quarantine": "{failed} of {runs} runs failed within an hour:"
    f" its jobs get {QUARANTINE_TRIES} attempts until fewer fail.",
    "tenant_quarantine": "{failed} of {runs} runs of this tenant failed within an hour:"
    f" its jobs of the type get {QUARANTINE_TRIES} attempts until fewer fail.",
    "retry_budget": "{retries} retries of {first_runs} jobs within ten minutes:"
    " its failed jobs become dead letters without another attempt until fewer are retried.",
    "throttle": "{crashes} workers of {pool} were lost to jobs that broke their limits"
    " or had lost two before:"
    " it runs one job at a time there until ten minutes pass without another loss.",
    "spike": "{submissions} jobs submitted in this hour, {usual} are usual."
    " The tenant was notified; nothing is delayed.",
}


def read_limits(asked: PageRequest) -> dict[str, Any]:
    declared = {one.dependency for one in current_services().types.values() if one.dependency}
    with read_state() as connection:
        run = connection.exec_driver_sql
        restrictions, types = run(READ_VERDICTS).all(), run(READ_TYPES).all()
        lanes = {row.pool: row.open for row in run(READ_LANES)}
        return {
            "circuits": run(READ_CIRCUITS, {"declared": sorted(declared)}).all(),
            "quotas": quotas_with_usage(connection),
            "verdicts": [(row, effect_of(row)) for row in restrictions[:MOST]],
            "types": types[:MOST],
            "cut": len(restrictions) > MOST or len(types) > MOST,
            "most": MOST,
            "lanes": {pool: lanes.get(pool, False) for pool in POOLS},
            "relief": run(READ_RELIEF).scalar(),
            "forecasts": {row.pool: row for row in run(READ_FORECASTS)},
            "open_seconds": OPEN_SECONDS,
            "probes": PROBES,
            "refusals": MIN_OUTAGES,
        }


def quotas_with_usage(connection: Connection) -> list[tuple[Any, ...]]:
    """Every quota with its limits, and what was used of it."""
    used = {row.dependency: row for row in connection.exec_driver_sql(READ_TOKENS)}
    quotas = read_quotas(connection)
    return [(quota, limits_of(quota), used.get(quota.dependency)) for quota in quotas]


def limits_of(quota: Declared) -> list[dict[str, Any]]:
    """The limits of a quota that are declared, or reported by the dependency."""
    limits = []
    for kind, (name, field) in KINDS.items():
        declared = getattr(quota, field) if field else None
        reported, remaining, _ = quota.reading.get(kind, (None, None, None))
        if declared is not None or reported is not None:
            limits.append(
                {"kind": name, "declared": declared, "reported": reported, "remaining": remaining}
            )
    return limits


def effect_of(restriction: Any) -> str:
    detail = restriction.detail if isinstance(restriction.detail, dict) else {}
    return EFFECTS.get(restriction.kind, "").format_map(
        defaultdict(lambda: "?", detail, pool=restriction.pool)
    )


LIMITS = live_page("/console/limits", "console/limits.html", read_limits, every_seconds=3.0)
