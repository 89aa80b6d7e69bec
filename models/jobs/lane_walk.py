"""Loose index scans over queued jobs: one step along ``jobs_line`` per lane, however long it is.

Each function returns the ``WITH RECURSIVE`` part of a statement. A step is ordered by the leading
columns of that index even where fewer would do, or the planner might choose another index.
"""

from __future__ import annotations


def lane_walk(
    *,
    pools: str = "(VALUES (%(pool)s))",
    keys: str = "tenant_id, dependency",
    where: str = "true",
    after: str = "",
    most: int | str = "",
) -> str:
    """The lanes of the pools, as ``lane (pool, <keys>, place)``.

    With ``tenant_id`` as the only key it goes from tenant to tenant. ``where`` restricts the
    jobs, ``after`` is the lane before the first one, ``most`` bounds the lanes per pool.
    """
    last = ", ".join(f"lane.{key}" for key in keys.split(", "))

    def step(pool: str, beyond: str) -> str:
        return f"""LATERAL (
            SELECT {keys} FROM jobs
            WHERE status = 'queued' AND jobs.pool = {pool} AND {where}
              {f"AND ({keys}) > ({beyond})" if beyond else ""}
            ORDER BY tenant_id, dependency LIMIT 1)"""

    return f"""
    WITH RECURSIVE lane AS (
        SELECT served.pool, first.*, 1 AS place
        FROM {pools} AS served (pool), {step("served.pool", after)} AS first
        UNION ALL
        SELECT lane.pool, next.*, lane.place + 1
        FROM lane, {step("lane.pool", last)} AS next
        {f"WHERE lane.place < {most}" if most else ""}
    )"""


def head_walk(*, tenant: str = "", most: int | str = "") -> str:
    """The first job of each lane and priority in the pools, as ``head``, in the order of the index.

    Takes the parameter ``pools``, and without a ``tenant`` also ``after``: the last tenant of each
    pool that is left out. ``most`` bounds the heads per pool.
    """

    def step(pool: str, beyond: str, order: str) -> str:
        return f"""(
            SELECT tenant_id, dependency, priority, id, greatest(created_at, execute_at) AS since
            FROM jobs WHERE status = 'queued' AND jobs.pool = {pool} AND {beyond}
            ORDER BY {order}priority DESC, id LIMIT 1)"""

    served, begin = "unnest(%(pools)s::text[]) AS served (pool)", f"tenant_id = {tenant}"
    steps = [
        step(
            "head.pool",
            """tenant_id = head.tenant_id AND dependency = head.dependency
              AND priority < head.priority""",
            "",
        ),
        step(
            "head.pool",
            "tenant_id = head.tenant_id AND dependency > head.dependency",
            "dependency, ",
        ),
    ]
    if not tenant:
        served = "unnest(%(pools)s::text[], %(after)s::bigint[]) AS served (pool, after)"
        begin = "tenant_id > served.after"
        steps.append(step("head.pool", "tenant_id > head.tenant_id", "tenant_id, dependency, "))
    return f"""
    WITH RECURSIVE head AS (
        SELECT served.pool, first.*, 1 AS place
        FROM {served},
            LATERAL {step("served.pool", begin, "tenant_id, dependency, ")} AS first
        UNION ALL
        SELECT head.pool, next.*, head.place + 1
        FROM head, LATERAL ({" UNION ALL ".join(steps)} LIMIT 1) AS next
        {f"WHERE head.place < {most}" if most else ""}
    )"""
