"""What tenants have besides waiting jobs: idempotency keys, and bytes in the blob store.

Both are summed up from :mod:`models.tallies`, never counted in their tables. Keys are deleted by
their age alone, so what was made of them in the last hours is how many there are. Blobs are counted
by the scheduler as it looks for those that no row names; what was stored since is added.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine

from app.admission.depth import TenantQueue
from models.store.arrays import plain_array
from models.store.session import fetch
from models.tallies import Tallies, TallyKind


def held_statement(kind: TallyKind, since: str, counted: str = "0") -> str:
    """Sums up what tenants got ``since``: a lookup by primary key for each tenant and bucket.

    After a failover to a server whose clock is behind, that may be later than now.
    """
    step = f"interval '{kind.bucket_seconds} s'"
    return f"""
    SELECT asked.place, ({counted} + sum(got.amount))::bigint AS held
    FROM unnest(%(places)s::int[], %(tenants)s::bigint[]) AS asked (place, tenant_id),
         generate_series(
             date_bin({step}, least(now(), {since}), 'epoch'), now(), {step}) AS step (bucket),
         LATERAL (
             SELECT coalesce(sum(amount), 0) AS amount FROM tallies
             WHERE kind = '{kind}' AND bucket = step.bucket AND name = asked.tenant_id::text
         ) AS got
    GROUP BY asked.place, asked.tenant_id
"""


#: Of the oldest hour all keys count.
READ_KEYS = held_statement(
    TallyKind.IDEMPOTENCY_KEY, "now() - make_interval(secs => %(kept_seconds)s)"
)
#: What was stored while the scheduler counted, and minutes before, may count twice until it counts
#: again. Tenant 0 has the time of the last count.
READ_BLOBS = held_statement(
    TallyKind.STORED_BLOB,
    """greatest(now() - interval '1 day',
                (SELECT counted_at FROM blob_counts WHERE tenant_id = 0))""",
    "coalesce((SELECT bytes FROM blob_counts AS of WHERE of.tenant_id = asked.tenant_id), 0)",
)


class Holdings:
    """Reads how much of something tenants have."""

    def __init__(
        self, tallies: Tallies, kind: TallyKind, statement: str, **parameters: object
    ) -> None:
        """``tallies``: where this process counts."""
        self._tallies = tallies
        self._kind = kind
        self._statement = statement
        self._parameters = parameters

    def __call__(self, engine: Engine, tenants: Sequence[TenantQueue]) -> dict[TenantQueue, int]:
        """By tenant; what this process has counted and not written yet is added."""
        ids = [tenant_id for tenant_id, _ in tenants]
        # Before the table is read: what is written meanwhile counts twice, never not at all.
        unwritten = [self._tallies.unwritten(self._kind, str(one))[1] for one in ids]
        asked = {"places": plain_array(range(len(ids))), "tenants": plain_array(ids)}
        rows = fetch(engine, self._statement, asked | self._parameters)
        return {tenants[row.place]: row.held + unwritten[row.place] for row in rows}
