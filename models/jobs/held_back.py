"""What holds jobs back right now besides the lack of a slot, as named SQL.

A circuit that is not closed or a quota that refused holds back the lanes of a dependency; a
throttle limits a tenant in a pool; of a tenant that is away nothing is admitted or dispatched
(`models.cells.away`). Every statement that depends on them uses these names. Only
workers go by ``open`` circuits alone: they run the probes of a half-open one.
"""

from __future__ import annotations

#: Condition on a row of ``circuits``: the dependency may not be called, or only by probes.
CIRCUIT_NOT_CLOSED = "state <> 'closed'"
#: Condition on a row of ``quotas``: the dependency refused and must not be called yet.
QUOTA_CLOSED = "closed_until > now()"

DEPENDENCIES_NOT_CLOSED = f"SELECT dependency FROM circuits WHERE {CIRCUIT_NOT_CLOSED}"
#: Dependencies whose lanes give nothing.
HELD_DEPENDENCIES = f"""
    {DEPENDENCIES_NOT_CLOSED} UNION ALL SELECT dependency FROM quotas WHERE {QUOTA_CLOSED}"""
#: Tenants that may have few jobs in flight in a pool.
THROTTLED = "SELECT tenant_id, pool FROM verdicts WHERE kind = 'throttle'"
#: Tenants that are placed in another cell; normally none.
AWAY = "SELECT tenant_id FROM away_tenants WHERE away"
#: Job types whose jobs get fewer attempts.
QUARANTINED = "SELECT name FROM verdicts WHERE kind = 'quarantine'"
#: The same for the jobs of one tenant. Of another kind, because workers of the previous version
#: would take a quarantine for everybody's.
TENANT_QUARANTINED = "SELECT tenant_id, name FROM verdicts WHERE kind = 'tenant_quarantine'"
#: Tenants whose failed jobs get no more retries.
WITHOUT_BUDGET = "SELECT tenant_id FROM verdicts WHERE kind = 'retry_budget'"
