"""``/console/tenants``: tenants with work, what each is entitled to and what it gets.

Active tenants are live. Others are found by the beginning of their names, or by paging.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection, Row
from werkzeug.datastructures import MultiDict

from app.api.http.state import read_standby
from app.console.page import PageRequest, live_page
from app.console.sorting import Sorting, parse_sort, with_links
from app.console.tenants.shares import entitled_shares, over_all_pools
from app.console.tenants.terms_form import TermsForm
from app.console.tenants.use import (
    MOST_ACTIVE,
    read_restrictions,
    read_tenants,
    read_used,
    read_working,
)
from app.errors import invalid_field
from app.policy.fairshare import Tier, entitlement_of
from app.tenants.listing import Listed, list_from
from app.tenants.tenant import TIERS, is_tenant_name
from models.pools import POOLS

#: What the active tenants can be sorted by: all of them are read.
COLUMNS: Mapping[str, Callable[[TenantListRow], Any]] = {
    "tenant": lambda row: row.tenant.name,
    "tier": lambda row: TIERS.index(row.tenant.tier),
    "weight": lambda row: row.weight,
    "entitled": lambda row: row.entitled or 0.0,
    "in_flight": lambda row: row.tenant.in_flight,
    "used": lambda row: row.used.seconds,
    "deficit": lambda row: row.owed or 0.0,
    "waiting": lambda row: row.tenant.queued,
    "rejected": lambda row: row.tenant.refused,
}
#: What all tenants can be sorted by, along an index.
ORDERS = ("name", "created")
#: Columns whose lowest value is first at first.
RISING = ("tenant", "name")
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
    sorting = parse_sort(asked.args.get("sort", ""), COLUMNS, Sorting("used", descending=True))
    order = parse_order(asked.args)
    with read_standby() as connection:
        rows, more = read_rows(connection, pool)
    # In the order of their usage so far, which decides between equals.
    rows.sort(key=COLUMNS[sorting.name], reverse=sorting.descending)
    return {
        "pool": pool,
        "pools": list(POOLS),
        "rows": rows,
        "more": more,
        "chart": chart_of(rows[:DRAWN]),
        "sorting": with_links(sorting, COLUMNS, RISING, partial(link, asked.args, "sort")),
        "order": with_links(order, ORDERS, RISING, partial(link, asked.args, "order")),
        "form": TermsForm(),
        "search": asked.args.get("search", ""),
        # Called outside of the live parts.
        "read_names": lambda: read_names(asked.args),
    }


def parse_order(args: MultiDict[str, str]) -> Sorting:
    """The order of the list of all tenants."""
    return parse_sort(args.get("order", ""), ORDERS, Sorting("name", descending=False))


def link(args: MultiDict[str, str], field: str, value: str) -> str:
    """This page sorted otherwise, from its beginning."""
    kept = {name: text for name, text in args.items() if name not in (field, "after") and text}
    return f"/console/tenants?{urlencode({**kept, field: value})}{'#all' * (field == 'order')}"


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
    prefix, order = args.get("search", "").strip().lower(), parse_order(args)
    if prefix and not is_tenant_name(prefix):
        return (), ""
    by_age = order.name == "created"
    after = parse_after(args.get("after", ""), by_age=by_age)
    with read_standby() as connection:
        found = list_from(
            connection, PAGE + 1, after, prefix, by_age=by_age, falling=order.descending
        )
    if len(found) <= PAGE:
        return found, ""
    last = found[PAGE - 1].tenant
    following = {**args.to_dict(), "after": last.id if by_age else last.name}
    return found[:PAGE], f"/console/tenants?{urlencode(following)}#all"


def parse_after(text: str, *, by_age: bool) -> str | int | None:
    """The last tenant of the page before: its id, or its name."""
    if not text:
        return None
    if by_age and text.isascii() and text.isdecimal() and len(text) < 19:
        return int(text)
    if by_age or not is_tenant_name(text):
        raise invalid_field("after", "is not a tenant")
    return text


TENANTS = live_page("/console/tenants", "console/tenants.html", read, every_seconds=5.0)
