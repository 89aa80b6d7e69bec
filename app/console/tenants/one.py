"""``/console/tenants/<name>``: one tenant's terms, shares, usage, rejections and keys.

Terms and keys are changed by :mod:`app.console.tenants.actions`.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date, timedelta
from decimal import Decimal
from typing import Any

from sqlalchemy import Connection

from app.admission.refusals import read_refusals
from app.api.http.state import read_state
from app.api.routes.operator import MOST_KEYS, find_tenant
from app.api.routes.tenant import standing_document, terms_document
from app.api.services import current_services
from app.console.page import PageRequest, live_page
from app.console.tenants.shares import entitled_shares
from app.console.tenants.terms_form import pools_of, terms_form
from app.console.tenants.use import read_restrictions, read_working
from app.policy.pricing import PriceList
from app.reads.usage import UsageLine, read_usage, total_of
from app.reads.waits import FRESH_SECONDS
from app.tenants.caps import cap_of
from app.tenants.listing import ListedKey, list_keys
from app.tenants.tenant import TenantProfile
from models.pools import POOLS
from models.store.clock import DATABASE_CLOCK
from models.store.roles import every_tenant

#: Days of usage and refusals that are shown, today included.
DAYS = 30

#: ``owed`` as the leader wrote it a moment ago, if it did; without work nothing is owed.
READ_POOLS = f"""
    SELECT counts.pool, scheduled::bigint, queued::bigint, succeeded::bigint, dead::bigint,
           (dispatched + running)::bigint AS in_flight, (scheduled + queued)::bigint AS waiting,
           (CASE WHEN queued + dispatched + running > 0
                 THEN (overall.pass - share.pass) * share.weight END)::float8 AS owed,
           share.weight, share.started_per_second
    FROM (SELECT pool, sum(scheduled) AS scheduled, sum(queued) AS queued,
                 sum(dispatched) AS dispatched, sum(running) AS running,
                 sum(succeeded) AS succeeded, sum(dead) AS dead
          FROM job_counts WHERE tenant_id = %(tenant)s GROUP BY pool) AS counts
    LEFT JOIN shares AS share ON share.tenant_id = %(tenant)s AND share.pool = counts.pool
        AND share.updated_at > now() - interval '{FRESH_SECONDS} seconds'
    LEFT JOIN shares AS overall ON overall.tenant_id = 0 AND overall.pool = counts.pool
    ORDER BY counts.pool
"""


def read(asked: PageRequest) -> dict[str, Any]:
    listed = find_tenant(asked.values["name"])
    with read_state() as connection:
        return {
            "created_at": listed.created_at,
            "form": terms_form(listed.tenant),
            "form_pools": pools_of(listed.tenant),
            **read_tenant(connection, listed.tenant),
        }


def read_tenant(connection: Connection, tenant: TenantProfile) -> dict[str, Any]:
    """What operators and the tenant itself are shown."""
    prices = current_services().prices
    today = DATABASE_CLOCK.now().date()
    lines = read_usage(connection, tenant.id, first_day(today), today, prices)
    return {
        "tenant": tenant,
        "terms": terms_document(tenant),
        "effective": standing_document(connection, tenant)["effective"],
        "pools": read_pools(connection, tenant),
        "usage": usage_of(lines, prices),
        "lines": lines,
        "prices": prices,
        "refusals": read_refusals(connection, tenant.id, DAYS),
        "restrictions": read_restrictions(connection).get(tenant.id, []),
        # Called outside of the live parts.
        "read_keys": lambda: read_keys(tenant),
    }


def read_pools(connection: Connection, tenant: TenantProfile) -> list[dict[str, Any]]:
    """Pools where it has or had jobs, with the share it is entitled to now, and its limits."""
    terms = current_services().gate.terms(tenant, POOLS)
    rows = connection.exec_driver_sql(READ_POOLS, {"tenant": tenant.id}).all()
    here = [row.pool for row in rows if row.queued + row.in_flight > 0]
    with every_tenant():  # a share depends on the others that wait
        shares = entitled_shares(read_working(connection, here)) if here else {}
    return [
        {
            **row._mapping,
            "share": shares.get((row.pool, tenant.id)),
            "depth": terms["depth"].get(row.pool),
            "cap": cap_of(tenant, row.pool),
            "reserved": tenant.limits_of(row.pool).reserved,
        }
        for row in rows
    ]


def first_day(today: date) -> date:
    """The first day whose usage is shown."""
    return today - timedelta(days=DAYS - 1)


def usage_of(lines: Sequence[UsageLine], prices: PriceList) -> dict[str, Any]:
    """Usage and cost by day, newest first, one for each day that has some; and their total."""
    first = first_day(DATABASE_CLOCK.now().date())
    by_day: dict[date, list[UsageLine]] = {}
    for line in lines:
        by_day.setdefault(line.day, []).append(line)
    days = [(day, total_of(by_day[day])) for day in sorted(by_day, reverse=True)]
    chart = chart_of(lines, first, prices.currency)
    return {"days": days, "total": total_of(lines), "chart": chart}


def chart_of(lines: Sequence[UsageLine], first: date, currency: str) -> dict[str, Any]:
    """Cost by day, a series for each pool, including days without usage."""
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
    with read_state() as connection:
        return list_keys(connection, MOST_KEYS, tenant.id)


TENANT = live_page("/console/tenants/<name>", "console/tenant.html", read, every_seconds=5.0)
