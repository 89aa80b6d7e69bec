"""Open circuits, restrictions and closed quotas, as a worker reads them.

Read every two seconds by each worker. The leading scheduler judges, and the dispatcher applies the
same rows; a worker needs them for jobs that were dispatched before they changed, and for retries.
Restrictions are read only if they changed. Without a leader they stay as they are.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from sqlalchemy import Connection, Engine

from models.jobs.held_back import QUARANTINED, TENANT_QUARANTINED, WITHOUT_BUDGET
from models.store.prepared import PreparedStatement
from models.store.session import connect

READ_RULES = """
    SELECT 'circuit' AS kind, dependency AS name, 0 AS closed_ms
    FROM circuits WHERE state = 'open'
    UNION ALL
    SELECT 'quota', dependency,
           coalesce(extract(epoch FROM closed_until - now()) * 1000, 0)::bigint FROM quotas
    UNION ALL
    SELECT 'version', version::text, 0 FROM verdicts_version
"""
PREPARED = PreparedStatement("read_rules", READ_RULES)
READ_RESTRICTIONS = f"""
    SELECT 'quarantine' AS kind, name, 0 AS tenant_id FROM ({QUARANTINED}) AS quarantined
    UNION ALL
    SELECT 'tenant_quarantine', name, tenant_id FROM ({TENANT_QUARANTINED}) AS quarantined
    UNION ALL
    SELECT 'retry_budget', '', tenant_id FROM ({WITHOUT_BUDGET}) AS spent
"""


@dataclass(frozen=True, slots=True)
class Rules:
    #: Dependencies whose circuit is open.
    open_circuits: frozenset[str] = frozenset()
    #: Seconds for which each dependency with a quota stays closed; 0 or less if it is open.
    quotas: dict[str, float] = field(default_factory=dict)
    #: Another one after every change of a restriction; empty if none were read.
    version: str = ""
    #: Job types in quarantine.
    quarantined: frozenset[str] = frozenset()
    #: Tenants whose jobs of a type are.
    tenants_quarantined: frozenset[tuple[int, str]] = frozenset()
    #: Tenants that spent their retry budget.
    without_budget: frozenset[int] = frozenset()


def read_rules(engine: Engine, known: Rules | None = None) -> Rules:
    """The rules in force; ``known`` are those of the last time."""
    known = known or Rules()
    with connect(engine) as connection:
        rows = PREPARED.execute(connection, {}).all()
        version = next(row.name for row in rows if row.kind == "version")
        if version != known.version:
            # After the version: they may be newer than it, and are then read once more.
            known = read_restrictions(connection, version)
    return replace(
        known,
        open_circuits=frozenset(row.name for row in rows if row.kind == "circuit"),
        quotas={row.name: row.closed_ms / 1000.0 for row in rows if row.kind == "quota"},
    )


def read_restrictions(connection: Connection, version: str) -> Rules:
    """The restrictions alone."""
    rows = connection.exec_driver_sql(READ_RESTRICTIONS).all()
    return Rules(
        version=version,
        quarantined=frozenset(row.name for row in rows if row.kind == "quarantine"),
        tenants_quarantined=frozenset(
            (row.tenant_id, row.name) for row in rows if row.kind == "tenant_quarantine"
        ),
        without_budget=frozenset(row.tenant_id for row in rows if row.kind == "retry_budget"),
    )
