"""``/console/tenants/<name>``: one tenant's terms, shares, use, refusals and keys.

Nothing is changed here: terms and keys are an affair of the API and the command line, and the
page says how.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from app.admission.refusals import read_refusals
from app.api.http.state import read_state
from app.api.routes.operator import MOST_KEYS, find_tenant
from app.api.routes.tenant import standing_document, terms_document
from app.api.services import current_services
from app.console.page import LivePage, PageRequest
from app.console.tenants.shares import entitled_shares
from app.console.tenants.use import FRESH_SECONDS, read_held, read_working
from app.policy.pricing import PriceList
from app.reads.usage import Total, UsageLine, read_usage, total_of
from app.tenants.listing import ListedKey, list_keys
from app.tenants.tenant import TenantProfile
from models.pools import POOLS

#: Days of usage and refusals that are shown, today included.
DAYS = 30

READ_POOLS = f"""
    SELECT counts.pool, scheduled::bigint, queued::bigint, dispatched::bigint, running::bigint,
           succeeded::bigint, dead::bigint,
           (CASE WHEN queued + dispatched + running > 0
                 THEN (everybody.pass - share.pass) * share.weight END)::float8 AS owed,
           share.weight, share.started_per_second
    FROM (SELECT pool, sum(scheduled) AS scheduled, sum(queued) AS queued,
                 sum(dispatched) AS dispatched, sum(running) AS running,
                 sum(succeeded) AS succeeded, sum(dead) AS dead
          FROM job_counts WHERE tenant_id = %(tenant)s GROUP BY pool) AS counts
    LEFT JOIN shares AS share ON share.tenant_id = %(tenant)s AND share.pool = counts.pool
        AND share.updated_at > now() - interval '{FRESH_SECONDS} seconds'
    LEFT JOIN shares AS everybody ON everybody.tenant_id = 0 AND everybody.pool = counts.pool
    ORDER BY counts.pool
"""


@dataclass(frozen=True, slots=True)
class InPool:
    """A tenant in one pool."""

    pool: str
    scheduled: int
    queued: int
    dispatched: int
    running: int
    #: Ever.
    succeeded: int
    dead: int
    #: As the leader wrote it down a moment ago, if it did; without work nothing is owed.
    owed: float | None = None
    weight: float | None = None
    started_per_second: float | None = None
    #: The part of the pool that it is entitled to now; None if it has no work there.
    share: float | None = None
    #: Most jobs that may wait, and be in flight; None: as many as come.
    depth: int | None = None
    cap: int | None = None
    #: Slots of its own.
    reserved: int | None = None

    @property
    def in_flight(self) -> int:
        return self.dispatched + self.running

    @property
    def waiting(self) -> int:
        return self.scheduled + self.queued


@dataclass(frozen=True, slots=True)
class Days:
    """What was used, day by day."""

    #: Newest first, one for each day that has some.
    days: Sequence[tuple[date, Total]]
    total: Total
    chart: dict[str, Any]


def read(asked: PageRequest) -> dict[str, Any]:
    """What the page shows."""
    listed = find_tenant(asked.values["name"])
    tenant = listed.tenant
    services = current_services()
    with read_state() as connection:
        standing = standing_document(connection, tenant)
        pools = read_pools(connection, tenant)
        usage = read_days(connection, tenant.id, services.prices)
        refusals = read_refusals(connection, tenant.id, DAYS)
        held = read_held(connection).get(tenant.id, [])
    return {
        "tenant": tenant,
        "created_at": listed.created_at,
        "terms": terms_document(tenant),
        "effective": standing["effective"],
        "pools": pools,
        "usage": usage,
        "prices": services.prices,
        "refusals": refusals,
        "held": held,
        "read_keys": lambda: read_keys(tenant),
    }


def read_pools(connection: Connection, tenant: TenantProfile) -> list[InPool]:
    """Where it has or had something, with what it is entitled to."""
    terms = current_services().gate.terms(tenant, POOLS)
    rows = connection.exec_driver_sql(READ_POOLS, {"tenant": tenant.id}).all()
    here = [row.pool for row in rows if row.queued + row.dispatched + row.running > 0]
    shares = entitled_shares(read_working(connection, here)) if here else {}
    return [
        InPool(
            **row._mapping,
            share=shares.get((row.pool, tenant.id)),
            depth=terms["depth"].get(row.pool),
            cap=tenant.limits_of(row.pool).in_flight,
            reserved=tenant.limits_of(row.pool).reserved,
        )
        for row in rows
    ]


def read_days(connection: Connection, tenant_id: int, prices: PriceList) -> Days:
    """The last days of a tenant, priced."""
    today = datetime.now(UTC).date()
    first = today - timedelta(days=DAYS - 1)
    lines = read_usage(connection, tenant_id, first, today, prices)
    by_day: dict[date, list[UsageLine]] = {}
    for line in lines:
        by_day.setdefault(line.day, []).append(line)
    days = [(day, total_of(by_day[day])) for day in sorted(by_day, reverse=True)]
    return Days(days, total_of(lines), chart_of(lines, first, prices.currency))


def chart_of(lines: Sequence[UsageLine], first: date, currency: str) -> dict[str, Any]:
    """Cost by day, a series for each pool; days without use are there too."""
    days = [first + timedelta(days=n) for n in range(DAYS)]
    names = [day.strftime("%d %b") for day in days]
    places = {pool: place for place, pool in enumerate(POOLS)}
    costs: dict[str, dict[date, Decimal]] = {}
    for line in lines:
        costs.setdefault(line.pool, {})[line.day] = line.cost
    return {
        "unit": currency,
        "series": [
            {
                "name": pool,
                "colour": places.get(pool, len(places)),  # as on the overview
                "x": names,
                "y": [float(of.get(day, 0)) for day in days],
            }
            for pool, of in sorted(costs.items(), key=lambda of: places.get(of[0], len(places)))
        ],
    }


def read_keys(tenant: TenantProfile) -> Sequence[ListedKey]:
    """Without their secrets, which nobody has."""
    with read_state() as connection:
        return list_keys(connection, MOST_KEYS, tenant.id)


TENANT = LivePage("/console/tenants/<name>", "console/tenant.html", read, every_seconds=5.0)
