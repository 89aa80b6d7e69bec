"""``/console/tenants``: tenants with work, what each is entitled to and what it gets.

Active tenants are live. Others are found by the beginning of their names, or by paging.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection, Row
from werkzeug.datastructures import MultiDict

from app.api.http.state import read_state
from app.console.page import PageRequest, live_page
from app.console.tenants.shares import entitled_shares, over_all_pools
from app.console.tenants.use import (
    MOST_ACTIVE,
    read_restrictions,
    read_tenants,
    read_used,
    read_working,
)
from app.errors import invalid_field
from app.policy.fairshare import Tier, entitlement_of
from app.tenants.listing import Listed, list_tenants
from app.tenants.tenant import is_tenant_name
from models.pools import POOLS

#: Tenants in the chart.
DRAWN = 10
#: Tenants on a page of the list.
PAGE = 50


@dataclass(frozen=True, slots=True)
class TenantListRow:
    """A tenant on the page."""

    #: Of READ_TENANTS and READ_USED.
    tenant: Row[Any]
    used: Row[Any]
    #: In effect by tier and its own weight, before floors and ceilings.
    weight: float
    #: Fractions: what it is entitled to, has in flight, and used today. The first is None without
    #: work, the others if no tenant has any.
    entitled: float | None
    in_flight: float | None
    usage: float | None
    #: Slot-seconds that it is owed. None without work: credit is not saved up.
    owed: float | None
    #: Of READ_VERDICTS.
    restrictions: Sequence[Row[Any]]


def read(asked: PageRequest) -> dict[str, Any]:
    pool = pool_of(asked.args)
    with read_state() as connection:
        rows, more = read_rows(connection, pool)
    return {
        "pool": pool,
        "pools": list(POOLS),
        "rows": rows,
        "more": more,
        "chart": chart_of(rows[:DRAWN]),
        "search": asked.args.get("search", ""),
        # Called outside of the live parts.
        "read_names": lambda: read_names(asked.args),
    }


def pool_of(args: MultiDict[str, str]) -> str | None:
    """The requested pool; None for all of them."""
    pool = args.get("pool") or None
    if pool is not None and pool not in POOLS:
        raise invalid_field("pool", f"must be one of {', '.join(POOLS)}")
    return pool


def read_rows(connection: Connection, pool: str | None) -> tuple[list[TenantListRow], bool]:
    """The active tenants, and whether there are more of them."""
    working = read_working(connection, list(POOLS) if pool is None else [pool])
    entitled = over_all_pools(working, entitled_shares(working))
    used = read_used(connection, entitled.keys(), pool)
    used_by = {row.tenant_id: row for row in used[:MOST_ACTIVE]}
    used_seconds = used[0].total_seconds if used else 0.0
    in_flight = sum(one.in_flight for one in working)
    restrictions = read_restrictions(connection)
    rows = [
        TenantListRow(
            tenant=tenant,
            used=used_by[tenant.id],
            weight=entitlement_of(Tier(tenant.tier), tenant.weight).weight,
            entitled=entitled.get(tenant.id),
            in_flight=min(1.0, tenant.in_flight / in_flight) if in_flight else None,
            usage=used_by[tenant.id].seconds / used_seconds if used_seconds > 0 else None,
            owed=tenant.owed if tenant.id in entitled else None,
            restrictions=[
                one
                for one in restrictions.get(tenant.id, ())
                if pool in (None, one.pool) or not one.pool
            ],
        )
        for tenant in read_tenants(connection, used_by, pool)
    ]
    rows.sort(key=lambda row: (-row.used.seconds, -row.tenant.in_flight, row.tenant.name))
    return rows, len(used) > MOST_ACTIVE


def chart_of(rows: Sequence[TenantListRow]) -> dict[str, Any]:
    """Shares side by side, as percentages."""
    names = [row.tenant.name for row in rows]
    series = {
        "entitled now": [row.entitled for row in rows],
        "in flight now": [row.in_flight for row in rows],
        "used today": [row.usage for row in rows],
    }
    return {
        "suffix": "\u202f%",
        "series": [
            {"name": name, "x": names, "y": [round(100 * (value or 0.0), 1) for value in values]}
            for name, values in series.items()
        ],
    }


def read_names(args: MultiDict[str, str]) -> tuple[Sequence[Listed], str]:
    """A page of tenants whose names start with ``search``; and the URL of the next page, if any."""
    prefix, after = args.get("search", "").strip().lower(), args.get("after", "")
    if prefix and not is_tenant_name(prefix):
        return (), ""
    if after and not is_tenant_name(after):
        raise invalid_field("after", "is not a tenant name")
    with read_state() as connection:
        found = list_tenants(connection, PAGE + 1, after, prefix)
    if len(found) <= PAGE:
        return found, ""
    following = {**args.to_dict(), "after": found[PAGE - 1].tenant.name}
    return found[:PAGE], f"/console/tenants?{urlencode(following)}#all"


TENANTS = live_page("/console/tenants", "console/tenants.html", read, every_seconds=5.0)
