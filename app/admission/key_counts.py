"""How many idempotency keys of a tenant are kept.

Counted in :mod:`models.tallies` by the hour in which they were made: as keys are deleted by their
age alone, the sum of the last hours is how many there are. Never counted in their table.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine

from app.admission.depth import TenantQueue
from models.store.arrays import plain_array
from models.store.session import fetch
from models.tallies import Tallies, TallyKind

#: A lookup by primary key for each tenant and hour. Of the oldest hour all keys count.
READ_KEYS = f"""
    SELECT asked.place, sum(made.total)::bigint AS keys
    FROM unnest(%(places)s::int[], %(tenants)s::text[]) AS asked (place, name),
         generate_series(
             date_bin('1 hour', now() - make_interval(secs => %(kept_seconds)s), 'epoch'),
             now(), interval '1 hour') AS hour (bucket),
         LATERAL (
             SELECT coalesce(sum(total), 0) AS total FROM tallies
             WHERE kind = '{TallyKind.IDEMPOTENCY_KEY}' AND bucket = hour.bucket
               AND name = asked.name
         ) AS made
    GROUP BY asked.place
"""


class KeyCounts:
    """Reads how many keys tenants have."""

    def __init__(self, tallies: Tallies, kept_seconds: float) -> None:
        """``tallies``: where this process counts. ``kept_seconds``: how long keys are kept."""
        self._tallies = tallies
        self._kept_seconds = kept_seconds

    def __call__(self, engine: Engine, tenants: Sequence[TenantQueue]) -> dict[TenantQueue, int]:
        """By tenant; what this process has counted and not written yet is added."""
        names = [str(tenant_id) for tenant_id, _ in tenants]
        # Before the table is read: what is written meanwhile counts twice, never not at all.
        kind = TallyKind.IDEMPOTENCY_KEY
        unwritten = [self._tallies.unwritten(kind, name)[0] for name in names]
        asked = {
            "places": plain_array(range(len(names))),
            "tenants": plain_array(names),
            "kept_seconds": self._kept_seconds,
        }
        rows = fetch(engine, READ_KEYS, asked)
        return {tenants[row.place]: row.keys + unwritten[row.place] for row in rows}
