"""Limits of the first tenant, and time for its bucket."""

from __future__ import annotations

from tests.support.database_fixture import DatabaseFixture


def limit_rate(database: DatabaseFixture, per_second: float, burst: float) -> None:
    terms = "UPDATE tenants SET submit_per_second = %s, submit_burst = %s WHERE id = 1"
    database.execute(terms, per_second, burst)


def limit_depth(database: DatabaseFixture, pool: str, depth: int) -> None:
    limit = """
        INSERT INTO tenant_limits (tenant_id, pool, depth) VALUES (1, %s, %s)
        ON CONFLICT (tenant_id, pool) DO UPDATE SET depth = excluded.depth
    """
    database.execute(limit, pool, depth)


def pass_time(database: DatabaseFixture, seconds: float) -> None:
    """As if the bucket had filled for so long."""
    move = "UPDATE rate_buckets SET spent_until = spent_until - make_interval(secs => %s)"
    database.execute(move, seconds)
