"""``/tenant``: a tenant's own terms and what is waiting under them, and its usage for an invoice.

At ``GET /tenant`` programs get JSON; browsers get :mod:`app.console.tenant_page.page`, by
``Accept``. Amounts of money are strings: a float would not be what the invoice says.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import asdict
from datetime import date
from typing import Any

from flask import Blueprint, Response, request
from sqlalchemy import Connection

from app.admission.depth import read_waiting
from app.admission.gate import Gate
from app.admission.refusals import read_refusals
from app.api.auth.access import Access
from app.api.auth.visitors import asks_for_page
from app.api.http.query import parse_partial
from app.api.http.reply import Reply, fields_of
from app.api.http.state import read_state
from app.api.openapi.declared import MISSING, PARTIAL, Operation, Parameter, Returns, for_tenants
from app.api.schemas import platform_answers
from app.api.services import current_services, current_tenant
from app.errors import invalid_field
from app.log_ids import CALLER
from app.policy.fairshare import Tier, entitlement_of
from app.reads.usage import Total, UsageLine, read_usage, total_of
from app.tenants.scopes import Scope
from app.tenants.tenant import TenantProfile
from models.pools import POOLS
from models.store.clock import DATABASE_CLOCK
from models.store.roles import set_tenant

tenant_terms = Blueprint("tenant_terms", __name__)
usage = Blueprint("usage", __name__)

#: Days for which rejections are reported, including today.
REFUSALS_DAYS = 7
#: A cache must not give a browser the JSON, nor a program the page.
BY_ACCEPT = {"Vary": "Accept"}
DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
#: Longest period of one report.
MOST_DAYS = 366
A_DAY = {"type": "string", "format": "date"}


@tenant_terms.get("/tenant")
@Operation(
    Access.TENANT_PAGE,
    Scope.READ,
    "Your terms, waiting jobs and rejected submissions",
    Returns(200, platform_answers.Tenant, (MISSING,)),
    query=(PARTIAL,),
)
def get_tenant() -> Response:
    """Browsers get a page instead."""
    if asks_for_page(request.environ):
        return Response(current_services().tenant_page(), headers=BY_ACCEPT)
    parse_partial()
    request.environ.pop(CALLER, None)  # a cookie grants access to the page only
    tenant = current_tenant()
    set_tenant(tenant.id)  # which may be another than the cookie's
    with read_state() as connection:
        document = terms_document(tenant) | standing_document(connection, tenant)
    return Reply(document, 200, {"Cache-Control": "no-cache", **BY_ACCEPT})


def standing_document(connection: Connection, tenant: TenantProfile) -> dict[str, Any]:
    """The effective terms, and what is waiting and was rejected under them."""
    return {
        "effective": effective_terms(current_services().gate, tenant),
        "waiting": read_waiting(connection, tenant.id),
        "refusals": read_refusals(connection, tenant.id, REFUSALS_DAYS),
    }


def effective_terms(gate: Gate, tenant: TenantProfile) -> dict[str, Any]:
    """The terms that hold here, with defaults in place of null."""
    weight = entitlement_of(Tier(tenant.tier), tenant.weight, tenant.share).weight
    return {"weight": weight, **gate.terms(tenant, POOLS)}


def terms_document(tenant: TenantProfile) -> dict[str, Any]:
    """Name, tier and limits; null is the deployment's default."""
    limits = {pool: asdict(limits) for pool, limits in tenant.limits.items()}
    return fields_of(platform_answers.Terms, tenant) | {"limits": limits}


@usage.get("/tenant/usage")
@for_tenants(
    Scope.READ,
    "Slot time, jobs, tokens and cost by day and pool",
    Returns(200, platform_answers.UsageReport, (MISSING,)),
    query=(
        PARTIAL,
        Parameter("from", "First day; by default the first of the month.", A_DAY),
        Parameter("to", "Last day; by default today.", A_DAY),
    ),
)
def get_usage() -> Response:
    """By default from the first of this month until today."""
    prices, tenant = current_services().prices, current_tenant()
    parse_partial()
    last = parse_day("to", DATABASE_CLOCK.now().date())
    first = parse_day("from", last.replace(day=1))
    if not 0 <= (last - first).days < MOST_DAYS:
        raise invalid_field(
            "from", f"must not be after the last day, nor {MOST_DAYS} days or more before it"
        )
    with read_state() as connection:
        lines = read_usage(connection, tenant.id, first, last, prices)
    total = total_of(lines)
    document = {
        "tenant": tenant.name,
        "from": first.isoformat(),
        "to": last.isoformat(),
        "currency": prices.currency,
        "prices": {
            name: format(price, "f")
            for name, price in fields_of(platform_answers.Prices, prices).items()
        },
        "total": amounts(total),
        "days": [*map(line_amounts, lines)],
    }
    return Reply(document, 200, {"Cache-Control": "no-cache"})


def amounts(total: Total) -> dict[str, Any]:
    """Usage and its cost."""
    use = total.use
    return {
        "jobs": use.jobs,
        "runs": total.runs,
        "slot_seconds": round(float(use.slot_seconds), 6),
        "tokens_in": use.tokens_in,
        "tokens_out": use.tokens_out,
        "cost": f"{total.cost:.6f}",
    }


def line_amounts(line: UsageLine) -> dict[str, Any]:
    """The same of one day in one pool."""
    return {"day": line.day.isoformat(), "pool": line.pool} | amounts(line)


def parse_day(field: str, usual: date) -> date:
    """A day in UTC, such as 2030-01-31."""
    text = request.args.get(field)
    if text is None:
        return usual
    with contextlib.suppress(ValueError):
        if DAY.fullmatch(text):
            return date.fromisoformat(text)
    raise invalid_field(field, "must be a date such as 2030-01-31")
