"""The last step of removing a tenant: its counts, its keys and its row, in one transaction.

What comes before is in :mod:`models.jobs.remove_tenant`. A cell notes the id for good, in
``transfer_marks``: requests of the tenant may still wait in the intake of another one.
"""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import Engine

from models.job_counts import FOLD_LOCK, TAKE_LOCK
from models.store.session import fetch, transaction

ANY_LEFT = "SELECT id FROM jobs WHERE tenant_id = %(tenant)s LIMIT 1"
#: Counts first: nobody folds them meanwhile. Those of all tenants together do not fall.
REMOVE_TENANT = (
    "DELETE FROM job_count_deltas WHERE tenant_id = %(tenant)s",
    "DELETE FROM job_count_sums WHERE tenant_id = %(tenant)s",
    "DELETE FROM job_count_keys WHERE tenant_id = %(tenant)s",
    "DELETE FROM api_keys WHERE tenant_id = %(tenant)s",
    """
    WITH removed AS (
        DELETE FROM tenants WHERE id = %(tenant)s AND deleted_at IS NOT NULL RETURNING id)
    INSERT INTO transfer_marks (mark) SELECT 'deleted/' || id FROM removed, cell_identity
    ON CONFLICT DO NOTHING
    """,
)
FIND_DELETED = """
    SELECT asked.id FROM unnest(%(ids)s::bigint[]) AS asked (id)
    WHERE EXISTS (SELECT FROM transfer_marks WHERE mark = 'deleted/' || asked.id)
       OR EXISTS (SELECT FROM tenants WHERE id = asked.id AND deleted_at IS NOT NULL)
"""


def remove_tenant(engine: Engine, tenant_id: int) -> bool:
    """Remove the row of a tenant, with its keys and counts; False if a job of it is left."""
    asked = {"tenant": tenant_id, "lock": FOLD_LOCK}
    with transaction(engine) as connection:
        if not connection.exec_driver_sql(TAKE_LOCK, asked).scalar_one():
            return False
        if connection.exec_driver_sql(ANY_LEFT, asked).first() is not None:
            return False
        for statement in REMOVE_TENANT:
            connection.exec_driver_sql(statement, asked)
    return True


def find_deleted(engine: Engine, ids: Collection[int]) -> set[int]:
    """Those of these tenants that were deleted in this cell, or are being deleted."""
    return {row.id for row in fetch(engine, FIND_DELETED, {"ids": list(ids)})}
