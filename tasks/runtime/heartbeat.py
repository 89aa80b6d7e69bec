"""Heartbeats: one statement keeps all leases of a process, and tells which were lost."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Engine

from models.pools import lease_interval_sql
from models.session import connection
from tasks.runtime.claim import JobRef

#: Status as text: see CLAIM.
BEAT = f"""
    UPDATE jobs AS job
    SET lease_expires_at = now() + {lease_interval_sql("job.pool")}
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[]) AS held (id, lease)
    WHERE job.id = held.id AND job.lease = held.lease AND job.status::text = 'running'
    RETURNING job.id::text, job.lease
"""


def beat(engine: Engine, held: Collection[JobRef]) -> set[JobRef]:
    """Renew the leases in ``held``; those that are still ours."""
    if not held:
        return set()
    with connection(engine) as taken:
        rows = taken.exec_driver_sql(
            BEAT, {"ids": [ref.id for ref in held], "leases": [ref.lease for ref in held]}
        ).all()
    return {JobRef(row[0], row[1]) for row in rows}
