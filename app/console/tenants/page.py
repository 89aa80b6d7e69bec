"""``/console/tenants``: who has work, what each is entitled to and what it gets.

Active tenants, at most a hundred with most use first, stay up to date. All others are found by
the beginning of their names, or by leafing through the list.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlencode

from sqlalchemy import Connection
from werkzeug.datastructures import MultiDict

from app.api.http.state import read_state
from app.console.page import LivePage, PageRequest
from app.console.tenants.shares import entitled_shares, over_all_pools
from app.console.tenants.use import (
    Restriction,
    Seen,
    Used,
    read_held,
    read_seen,
    read_used,
    read_working,
)
from app.errors import invalid_field
from app.policy.fairshare import Tier, entitlement_of
from app.tenants.listing import Listed, list_tenants
from app.tenants.tenant import is_tenant_name
from models.pools import POOLS

#: Tenants in the picture.
DRAWN = 10
#: Tenants on a page of the list.
PAGE = 50


@dataclass(frozen=True, slots=True)
class TenantListRow:
    """A tenant on the page."""

    seen: Seen
    used: Used
    #: In effect for one of its kind; floors and ceilings aside.
    weight: float
    #: Parts of one: what it is entitled to now, what it has in flight, what it used today. The
    #: first is None if it has no work, the others if nobody has any.
    entitled: float | None
    flying: float | None
    using: float | None
    #: Slot-seconds that it is owed. Without work it is owed nothing: nobody saves up credit.
    owed: float | None
    held: Sequence[Restriction]


@dataclass(frozen=True, slots=True)
class Names:
    """A page of the list of all tenants."""

    listed: Sequence[Listed]
    #: Where the next page is; empty after the last.
    next_url: str


def read(asked: PageRequest) -> dict[str, Any]:
    """What the page shows."""
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
        # Of the whole page only: what lives does not need it.
        "read_names": lambda: read_names(asked.args),
    }


def pool_of(args: MultiDict[str, str]) -> str | None:
    """The pool that is asked for; None for all of them."""
    pool = args.get("pool") or None
    if pool is not None and pool not in POOLS:
        raise invalid_field("pool", f"must be one of {', '.join(POOLS)}")
    return pool


def read_rows(connection: Connection, pool: str | None) -> tuple[list[TenantListRow], bool]:
    """The active tenants, and whether there are more of them."""
    working = read_working(connection, list(POOLS) if pool is None else [pool])
    entitled = over_all_pools(working, entitled_shares(working))
    used = read_used(connection, entitled.keys(), pool)
    flying = sum(one.in_flight for one in working)
    held = read_held(connection)
    rows = [
        TenantListRow(
            seen=seen,
            used=used.by_tenant[seen.id],
            weight=entitlement_of(Tier(seen.tier), seen.weight).weight,
            entitled=entitled.get(seen.id),
            flying=min(1.0, seen.in_flight / flying) if flying else None,
            using=part(used.by_tenant[seen.id].seconds, used.total_seconds),
            owed=seen.owed if seen.id in entitled else None,
            held=[one for one in held.get(seen.id, ()) if pool in (None, one.pool) or not one.pool],
        )
        for seen in read_seen(connection, used.by_tenant, pool)
    ]
    rows.sort(key=lambda row: (-row.used.seconds, -row.seen.in_flight, row.seen.name))
    return rows, used.more


def part(of: float, whole: float) -> float | None:
    """A part of the whole; None of nothing."""
    return of / whole if whole > 0 else None


def chart_of(rows: Sequence[TenantListRow]) -> dict[str, Any]:
    """Shares side by side, as percentages."""
    names = [row.seen.name for row in rows]
    series = {
        "entitled now": [row.entitled for row in rows],
        "in flight now": [row.flying for row in rows],
        "used today": [row.using for row in rows],
    }
    return {
        "suffix": "\u202f%",
        "series": [
            {"name": name, "x": names, "y": [round(100 * (value or 0.0), 1) for value in values]}
            for name, values in series.items()
        ],
    }


def read_names(args: MultiDict[str, str]) -> Names:
    """All tenants whose names begin so, from a name on."""
    prefix, after = args.get("search", "").strip().lower(), args.get("after", "")
    if prefix and not is_tenant_name(prefix):
        return Names((), "")
    if after and not is_tenant_name(after):
        raise invalid_field("after", "is not a tenant name")
    with read_state() as connection:
        found = list_tenants(connection, PAGE + 1, after, prefix)
    if len(found) <= PAGE:
        return Names(found, "")
    following = {**args.to_dict(), "after": found[PAGE - 1].tenant.name}
    return Names(found[:PAGE], f"/console/tenants?{urlencode(following)}#all")


TENANTS = LivePage("/console/tenants", "console/tenants.html", read, every_seconds=5.0)
