"""How many jobs are in each state: of all tenants or one, in all pools or one."""

from __future__ import annotations

from sqlalchemy import Connection, func, select

from app.reads.gauges import STATES
from models.schema import JOB_COUNTS, Job

JOBS = Job.__table__.c
COUNTS = JOB_COUNTS.c
#: Tenant of the counters over all tenants.
ALL_TENANTS = 0


def count_states(
    connection: Connection, tenant_id: int | None = None, pool: str | None = None
) -> dict[str, int]:
    """Jobs by state, from the counters; those that ended are never subtracted."""
    sums = [func.coalesce(func.sum(COUNTS[state]), 0).label(state) for state in STATES]
    wanted = select(*sums).where(COUNTS.tenant_id == (tenant_id or ALL_TENANTS))
    if pool is not None:
        wanted = wanted.where(COUNTS.pool == pool)
    row = connection.execute(wanted).mappings().one()
    return {state: int(row[state]) for state in STATES}


def count_waiting(connection: Connection) -> dict[str, int]:
    """Queued jobs of all tenants by pool, from the counters."""
    waiting = (
        select(COUNTS.pool, func.sum(COUNTS.queued).label("jobs"))
        .where(COUNTS.tenant_id == ALL_TENANTS)
        .group_by(COUNTS.pool)
    )
    return {row.pool: int(row.jobs) for row in connection.execute(waiting)}


def count_dead(
    connection: Connection, most: int, tenant_id: int | None = None, pool: str | None = None
) -> int:
    """Dead letters that are still there, up to ``most``, along their index."""
    dead = select(JOBS.id).where(JOBS.status == "dead").order_by(JOBS.tenant_id, JOBS.id)
    if tenant_id is not None:
        dead = dead.where(JOBS.tenant_id == tenant_id)
    if pool is not None:
        dead = dead.where(JOBS.pool == pool)
    counted = select(func.count()).select_from(dead.limit(most).subquery("dead"))
    return int(connection.execute(counted).scalar_one())
