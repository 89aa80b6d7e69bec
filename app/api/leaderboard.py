"""``/leaderboard``: scored applications of a role, best first.

Ties share a rank and keep the order of submission. Pages are found by key, so the
thousandth costs what the first does; the cursor carries the rank along.
"""

from __future__ import annotations

import base64
import binascii
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from typing import Any
from urllib.parse import urlencode

import orjson
from flask import Blueprint, Response, current_app, request

from app.api.identity import current_tenant_id
from app.api.views import rfc3339
from app.errors import FieldError, ValidationFailed
from models.ids import parse_id
from models.session import connection

leaderboard = Blueprint("leaderboard", __name__)

PAGE = 50
MOST = 500

#: ``before`` rows stand above the page and ``rank`` is that of the last of them.
READ_PAGE = """
    SELECT id::text, candidate, score, rationale, scored_at
    FROM applications
    WHERE tenant_id = %(tenant)s AND role = %(role)s AND score IS NOT NULL
      AND (score < %(score)s OR (score = %(score)s AND id > %(id)s::uuid))
    ORDER BY score DESC, id
    LIMIT %(limit)s
"""
#: The same from the top: one walk along the index, without a comparison to start from.
READ_FIRST_PAGE = """
    SELECT id::text, candidate, score, rationale, scored_at
    FROM applications
    WHERE tenant_id = %(tenant)s AND role = %(role)s AND score IS NOT NULL
    ORDER BY score DESC, id
    LIMIT %(limit)s
"""


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last row of the page before, and where it stood."""

    score: Decimal
    id: str
    #: Its rank, and its place in the order.
    rank: int
    place: int

    def encode(self) -> str:
        text = f"{self.score}|{self.id}|{self.rank}|{self.place}"
        return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")

    @classmethod
    def decode(cls, text: str) -> Cursor:
        try:
            padded = text + "=" * (-len(text) % 4)
            decoded = base64.b64decode(padded, altchars=b"-_", validate=True).decode()
            score, text_id, rank, place = decoded.split("|")
            cursor_id = parse_id(text_id)
            number = Decimal(score)
            if cursor_id is None or not number.is_finite() or abs(number) > 1000:
                raise ValueError
            position = cls(number, cursor_id, int(rank), int(place))
            if not 0 < position.rank <= position.place < 2**53:
                raise ValueError
        except (ValueError, binascii.Error, InvalidOperation):
            raise ValidationFailed(
                errors=(FieldError("cursor", "is not one this server gave out"),)
            ) from None
        return position


@leaderboard.get("/leaderboard")
def get_leaderboard() -> Response:
    tenant_id = current_tenant_id()
    role, limit, cursor = parse_query()
    parameters: dict[str, Any] = {"tenant": tenant_id, "role": role, "limit": limit + 1}
    if cursor is not None:
        parameters |= {"score": cursor.score, "id": cursor.id}
    with connection(current_app.extensions["fairline"].engine) as taken:
        rows = taken.exec_driver_sql(READ_PAGE if cursor else READ_FIRST_PAGE, parameters).all()
    last = cursor
    entries = []
    for row in rows[:limit]:
        place = last.place + 1 if last else 1
        rank = last.rank if last and last.score == row[2] else place
        last = Cursor(row[2], row[0], rank, place)
        entries.append(
            {
                "rank": rank,
                "id": row[0],
                "candidate": row[1],
                "score": float(row[2]),
                "rationale": row[3],
                "scored_at": rfc3339(row[4]),
            }
        )
    headers = {}
    if len(rows) > limit and last is not None:
        query = urlencode({"role": role, "limit": limit, "cursor": last.encode()})
        headers["Link"] = f'</leaderboard?{query}>; rel="next"'
    document = {"role": role, "entries": entries}
    return Response(orjson.dumps(document), 200, headers, content_type="application/json")


def parse_query() -> tuple[str, int, Cursor | None]:
    """Role, page size and where to go on; anything else is an error."""
    unknown = set(request.args) - {"role", "limit", "cursor"}
    if unknown:
        raise ValidationFailed(
            errors=tuple(FieldError(name[:100], "is not a parameter") for name in sorted(unknown))
        )
    role = request.args.get("role", "general").strip()
    if not 0 < len(role) <= 200 or "\x00" in role:
        raise ValidationFailed(errors=(FieldError("role", "must have 1 to 200 characters"),))
    limit_text = request.args.get("limit", str(PAGE))
    if not (limit_text.isascii() and limit_text.isdigit() and 0 < int(limit_text[:9]) <= MOST):
        raise ValidationFailed(errors=(FieldError("limit", f"must be from 1 to {MOST}"),))
    cursor_text = request.args.get("cursor")
    return role, int(limit_text), Cursor.decode(cursor_text) if cursor_text else None
