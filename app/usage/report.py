"""What a tenant used, day by day and pool by pool, and what it costs.

Reads what settling wrote: a run is on the bill in the transaction that ends it. The total is
the sum of the lines as they are printed, so that an invoice adds up.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal

from sqlalchemy import Connection

from app.usage.pricing import Prices, Use, cost

#: Days are those of UTC. Shards are an affair of the writers.
READ_USAGE = """
    SELECT day, pool, sum(jobs)::bigint, sum(runs)::bigint, sum(slot_seconds)::numeric,
           sum(tokens_in)::bigint, sum(tokens_out)::bigint
    FROM usage
    WHERE tenant_id = %(tenant)s AND day BETWEEN %(first)s AND %(last)s
    GROUP BY day, pool ORDER BY day, pool
"""
READ_NAME = "SELECT name FROM tenants WHERE id = %(tenant)s"


@dataclass(frozen=True, slots=True)
class Line:
    """A day in a pool."""

    day: date
    pool: str
    runs: int
    use: Use
    cost: Decimal


@dataclass(frozen=True, slots=True)
class Report:
    """Whose use it was, line by line."""

    tenant: str
    lines: tuple[Line, ...]


@dataclass(frozen=True, slots=True)
class Total:
    """All lines together."""

    runs: int
    use: Use
    cost: Decimal


def read_usage(
    taken: Connection, tenant_id: int, first: date, last: date, prices: Prices
) -> Report:
    """The lines from ``first`` to ``last``, both included; days without use have none."""
    name = taken.exec_driver_sql(READ_NAME, {"tenant": tenant_id}).scalar_one()
    rows = taken.exec_driver_sql(READ_USAGE, {"tenant": tenant_id, "first": first, "last": last})
    lines = []
    for day, pool, jobs, runs, slot_seconds, tokens_in, tokens_out in rows:
        use = Use(jobs, slot_seconds, tokens_in, tokens_out)
        lines.append(Line(day, pool, runs, use, cost(use, prices)))
    return Report(name, tuple(lines))


def total_of(lines: Sequence[Line]) -> Total:
    """The sum of the lines."""
    return Total(
        sum(line.runs for line in lines),
        Use(
            sum(line.use.jobs for line in lines),
            sum((line.use.slot_seconds for line in lines), Decimal(0)),
            sum(line.use.tokens_in for line in lines),
            sum(line.use.tokens_out for line in lines),
        ),
        sum((line.cost for line in lines), Decimal(0)),
    )
