"""Open circuits, quarantined job types, retry counts and closed quotas, as a worker reads them.

Read every two seconds by each worker. The dispatcher applies the same rows; a worker needs them
for jobs that were dispatched before they changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Engine

from models.jobs.held_back import QUARANTINED
from models.store.session import connect
from models.tallies import TallyKind
from tasks.retry.guards import BUDGET_WINDOW_SECONDS

READ_RULES = f"""
    SELECT 'circuit' AS kind, dependency AS name, 0 AS runs, 0 AS retries, 0 AS closed_ms
    FROM circuits WHERE state = 'open'
    UNION ALL
    SELECT 'quarantine', name, 0, 0, 0 FROM ({QUARANTINED}) AS quarantined
    UNION ALL
    SELECT kind, name, sum(total)::bigint, sum(amount)::bigint, 0 FROM tallies
    WHERE kind = '{TallyKind.RETRY}' AND bucket > now() - interval '{BUDGET_WINDOW_SECONDS} seconds'
    GROUP BY kind, name HAVING sum(amount) > 0
    UNION ALL
    SELECT 'quota', dependency, 0, 0,
           coalesce(extract(epoch FROM closed_until - now()) * 1000, 0)::bigint FROM quotas
"""


@dataclass(frozen=True, slots=True)
class Rules:
    #: Dependencies whose circuit is open.
    open_circuits: frozenset[str] = frozenset()
    #: Job types in quarantine.
    quarantined: frozenset[str] = frozenset()
    #: First runs and retries of the window, by tenant.
    retries: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: Seconds for which each dependency with a quota stays closed; 0 or less if it is open.
    quotas: dict[str, float] = field(default_factory=dict)


def read_rules(engine: Engine) -> Rules:
    with connect(engine) as connection:
        rows = connection.exec_driver_sql(READ_RULES).all()
    return Rules(
        frozenset(row.name for row in rows if row.kind == "circuit"),
        frozenset(row.name for row in rows if row.kind == "quarantine"),
        {int(row.name): (row.runs, row.retries) for row in rows if row.kind == TallyKind.RETRY},
        {row.name: row.closed_ms / 1000.0 for row in rows if row.kind == "quota"},
    )
