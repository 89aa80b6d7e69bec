"""``GET /operator/audit``: what operators and tenants did.

For operators only: a tenant has keys, and no administrator among them.
"""

from __future__ import annotations

from datetime import datetime

from flask import Blueprint, Response, request

from app.api.http.query import next_link, parse_choice, parse_cursor, parse_limit
from app.api.http.reply import Reply, fields_of
from app.api.http.state import read_state
from app.api.http.sub_request import current_part
from app.api.openapi.declared import (
    LINK,
    Parameter,
    Returns,
    choice,
    for_operators,
    paging,
)
from app.api.schemas import platform_answers
from app.errors import invalid_field
from app.reads.audit import AuditFilter, parse_audit_place, place_of, read_acts
from app.tenants.scopes import Scope
from models.audit import Act

audit = Blueprint("audit", __name__)

PAGE = 50
MOST = 500
MOMENT = {"type": "string", "format": "date-time"}
WHATS = tuple(act.value for act in Act)


@audit.get("/operator/audit")
@for_operators(
    Scope.READ,
    "What operators and tenants did",
    Returns(200, platform_answers.AuditLog, (LINK,)),
    query=(
        Parameter("tenant", "Only what concerns the tenant of this name."),
        Parameter("who", "Only what this key, by its id, or this user of the system did."),
        choice("what", "Only this act.", WHATS),
        Parameter("since", "Not before this time.", MOMENT),
        Parameter("until", "Before this time.", MOMENT),
        *paging(PAGE, MOST),
    ),
)
def get_audit() -> Response:
    """Newest first. `flask --app app audit export` writes all of it."""
    wanted = AuditFilter(
        tenant=parse_text("tenant"),
        who=parse_text("who"),
        what=parse_choice("what", WHATS),
        since=parse_moment("since"),
        until=parse_moment("until"),
    )
    limit, before = parse_limit(PAGE, MOST), parse_cursor(parse_audit_place)
    with read_state() as connection:
        found = read_acts(connection, wanted, limit + 1, before)
    acts = [fields_of(platform_answers.RecordedAct, row) for row in found[:limit]]
    if current_part().with_places:
        for act, row in zip(acts, found, strict=False):
            act["place"] = str(place_of(row))
    last = str(place_of(found[limit - 1])) if len(found) > limit else None
    return Reply({"acts": acts}, 200, next_link(limit, last))


def parse_text(field: str) -> str | None:
    """A parameter that is compared as it is."""
    text = request.args.get(field)
    if text is not None and "\0" in text:
        raise invalid_field(field, "must not contain NUL characters")
    return text


def parse_moment(field: str) -> datetime | None:
    """A time with its zone, such as 2030-01-31T12:00:00Z."""
    text = request.args.get(field)
    if text is None:
        return None
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise invalid_field(field, "must be a time with its zone, such as 2030-01-31T12:00:00Z")
    return moment
