"""Rules: what the platform currently holds against dependencies, types and tenants.

Read every two seconds by each worker. The scheduler's dispatcher obeys the same rows; a
worker only has to deal with what was dispatched before they changed.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from sqlalchemy import Engine

from models.session import connection
from tasks.retry.budget import WINDOW_SECONDS

READ_RULES = f"""
    SELECT 'circuit', dependency, 0, 0 FROM circuits WHERE state = 'open'
    UNION ALL
    SELECT kind, name, 0, 0 FROM verdicts WHERE kind = 'quarantine'
    UNION ALL
    SELECT 'retry', name, sum(total)::bigint, sum(bad)::bigint FROM tallies
    WHERE kind = 'retry' AND bucket > now() - interval '{WINDOW_SECONDS} seconds'
    GROUP BY name HAVING sum(bad) > 0
    UNION ALL
    SELECT 'quota', dependency,
           coalesce(extract(epoch FROM closed_until - now()) * 1000, 0)::bigint, 0 FROM quotas
"""


@dataclass(frozen=True, slots=True)
class Rules:
    """As of the last look."""

    #: Dependencies whose circuit is open.
    open_circuits: frozenset[str] = frozenset()
    #: Job types in quarantine.
    quarantined: frozenset[str] = frozenset()
    #: First runs and retries of the window, by tenant.
    retries: dict[int, tuple[int, int]] = field(default_factory=dict)
    #: Seconds for which each dependency with a quota is closed; not more than 0 if it is open.
    quotas: dict[str, float] = field(default_factory=dict)


def read_rules(engine: Engine) -> Rules:
    """The rules as they are now."""
    with connection(engine) as taken:
        rows = taken.exec_driver_sql(READ_RULES).all()
    return Rules(
        frozenset(row[1] for row in rows if row[0] == "circuit"),
        frozenset(row[1] for row in rows if row[0] == "quarantine"),
        {int(row[1]): (row[2], row[3]) for row in rows if row[0] == "retry"},
        {row[1]: row[2] / 1000.0 for row in rows if row[0] == "quota"},
    )
