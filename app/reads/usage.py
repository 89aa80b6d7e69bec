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

from app.policy.pricing import PriceList, Use, cost

#: Days are those of UTC. Shards matter to writers only.
READ_USAGE = """
    SELECT day, pool, sum(jobs)::bigint AS jobs, sum(runs)::bigint AS runs,
           sum(slot_seconds)::numeric AS slot_seconds, sum(tokens_in)::bigint AS tokens_in,
           sum(tokens_out)::bigint AS tokens_out
    FROM usage
    WHERE tenant_id = %(tenant)s AND day BETWEEN %(first)s AND %(last)s
    GROUP BY day, pool ORDER BY day, pool
"""


@dataclass(frozen=True, slots=True)
class Total:
    """Runs, what they used and what that costs."""

    runs: int
    use: Use
    cost: Decimal


@dataclass(frozen=True, slots=True)
class UsageLine(Total):
    """The same of one day in one pool."""

    day: date
    pool: str


def read_usage(
    connection: Connection, tenant_id: int, first: date, last: date, prices: PriceList
) -> list[UsageLine]:
    """The lines from ``first`` to ``last``, both included; days without use have none."""
    asked = {"tenant": tenant_id, "first": first, "last": last}
    lines = []
    for row in connection.exec_driver_sql(READ_USAGE, asked):
        use = Use(row.jobs, row.slot_seconds, row.tokens_in, row.tokens_out)
        lines.append(UsageLine(row.runs, use, cost(use, prices), row.day, row.pool))
    return lines


def total_of(lines: Sequence[UsageLine]) -> Total:
    """The sum of the lines."""
    use = Use(
        sum(line.use.jobs for line in lines),
        sum((line.use.slot_seconds for line in lines), Decimal(0)),
        sum(line.use.tokens_in for line in lines),
        sum(line.use.tokens_out for line in lines),
    )
    return Total(
        sum(line.runs for line in lines), use, sum((line.cost for line in lines), Decimal(0))
    )
