"""``/console/audit``: what operators and tenants did, newest first, by tenant, who and what."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlencode

from app.api.http.query import pack_cursor, unpack_cursor
from app.api.http.state import read_state
from app.console.formatting import pretty
from app.console.jobs.page import offer_tenants
from app.console.page import PageRequest, live_page
from app.errors import FairlineError
from app.reads.audit import AuditFilter, AuditPlace, parse_audit_place, place_of, read_acts
from models.audit import Act

PATH = "/console/audit"
#: Acts of a page.
SHOWN = 50
FIELDS = ("tenant", "who", "what")


def read_audit(asked: PageRequest) -> dict[str, Any]:
    """A page of acts that match."""
    given = {name: text for name in FIELDS if (text := asked.args.get(name, "").strip())}
    with read_state() as connection:
        wanted = AuditFilter(given.get("tenant"), given.get("who"), given.get("what"))
        found = read_acts(connection, wanted, SHOWN + 1, place(asked))
    older = None
    if len(found) > SHOWN:
        cursor = pack_cursor(str(place_of(found[SHOWN - 1])))
        older = f"{PATH}?{urlencode({**given, 'cursor': cursor})}"
    return {
        "acts": found[:SHOWN],
        "given": given,
        "older": older,
        "newest": f"{PATH}?{urlencode(given)}" if "cursor" in asked.args else None,
        "whats": [act.value for act in Act],
        "pretty": pretty,
        # Called by the form, which is not live.
        "offer_tenants": offer_tenants,
    }


def place(asked: PageRequest) -> AuditPlace | None:
    """Where the page before ended; the first page if that cannot be read."""
    try:
        return parse_audit_place(unpack_cursor(asked.args.get("cursor", "")))
    except FairlineError:
        return None


AUDIT = live_page(PATH, "console/audit.html", read_audit, every_seconds=5.0)
