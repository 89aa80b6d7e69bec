"""``GET /tenant/usage``: slot time, jobs and tokens by day and pool, priced, for an invoice.

Amounts of money are strings: a float would not be what the invoice says.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import orjson
from flask import Blueprint, Response, request

from app.api.auth.access import Access, open_to
from app.api.http.query import refused
from app.api.http.reply import Reply
from app.api.http.state import read_state
from app.api.openapi.declared import DeclaredResponse, Parameter, described
from app.api.schemas import operator_answers
from app.api.services import current_services
from app.policy.pricing import PriceList, Use
from app.reads.usage import read_usage, total_of

usage = Blueprint("usage", __name__)

DAY = re.compile(r"\d{4}-\d\d-\d\d", re.ASCII)
#: Longest time asked for at once.
MOST_DAYS = 366
A_DAY = {"type": "string", "format": "date"}


@usage.get("/tenant/usage")
@open_to(Access.TENANT)
@described(
    "Slot time, jobs, tokens and cost by day and pool",
    DeclaredResponse(200, "The report.", operator_answers.UsageReport),
    query=(
        Parameter("from", "First day; that of the month if left out.", A_DAY),
        Parameter("to", "Last day; today if left out.", A_DAY),
    ),
)
def get_usage() -> Response:
    """From the first of this month until today unless asked otherwise."""
    services = current_services()
    tenant = services.tenants.current(request.environ)
    today = datetime.now(UTC).date()
    last = parse_day("to", today)
    first = parse_day("from", last.replace(day=1))
    if not 0 <= (last - first).days < MOST_DAYS:
        raise refused("from", f"must be at most {MOST_DAYS} days before the end, and not after it")
    with read_state() as connection:
        lines = read_usage(connection, tenant.id, first, last, services.prices)
    total = total_of(lines)
    document = {
        "tenant": tenant.name,
        "from": first.isoformat(),
        "to": last.isoformat(),
        "currency": services.prices.currency,
        "prices": price_list(services.prices),
        "total": amounts(total.runs, total.use, total.cost),
        "days": [
            {"day": line.day.isoformat(), "pool": line.pool}
            | amounts(line.runs, line.use, line.cost)
            for line in lines
        ],
    }
    return Reply(orjson.dumps(document), 200, {"Cache-Control": "no-cache"})


def amounts(runs: int, use: Use, cost: Decimal) -> dict[str, Any]:
    """What was used and what it costs."""
    return {
        "jobs": use.jobs,
        "runs": runs,
        "slot_seconds": round(float(use.slot_seconds), 6),
        "tokens_in": use.tokens_in,
        "tokens_out": use.tokens_out,
        "cost": f"{cost:.6f}",
    }


def price_list(prices: PriceList) -> dict[str, str]:
    """What each unit costs."""
    return {
        "per_slot_second": format(prices.per_slot_second, "f"),
        "per_job": format(prices.per_job, "f"),
        "per_million_tokens_in": format(prices.per_million_tokens_in, "f"),
        "per_million_tokens_out": format(prices.per_million_tokens_out, "f"),
    }


def parse_day(field: str, usual: date) -> date:
    """A day of UTC, as 2030-01-31."""
    text = request.args.get(field)
    if text is None:
        return usual
    try:
        if not DAY.fullmatch(text):
            raise ValueError
        return date.fromisoformat(text)
    except ValueError:
        raise refused(field, "must be a day, as 2030-01-31") from None
