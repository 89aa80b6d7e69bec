"""``/leaderboard``: scored applications of a role, best first.

Ties share a rank and keep the order of submission. Pages are found by key, so the
thousandth costs what the first does; the cursor carries the rank along.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

import orjson
from flask import Blueprint, Response, request
from pydantic import TypeAdapter, ValidationError

from app.api.access import Access, open_to
from app.api.query import (
    bad_cursor,
    next_link,
    pack_cursor,
    parse_limit,
    refuse_parameters_besides,
    refused,
    unpack_cursor,
)
from app.api.schemas import Name
from app.api.services import services
from app.api.state import read_state
from app.api.times import rfc3339
from models.ids import parse_id

leaderboard = Blueprint("leaderboard", __name__)

PAGE = 50
MOST = 500
#: Trimmed as a submission's is, or a role could be submitted to but not looked at.
NAME = TypeAdapter(Name)

SCORED = """
    SELECT id, candidate, score, rationale, scored_at
    FROM applications
    WHERE tenant_id = %(tenant)s AND role = %(role)s AND score IS NOT NULL"""
READ_FIRST_PAGE = f"""{SCORED}
    ORDER BY score DESC, id
    LIMIT %(limit)s
"""
#: The rest of the tie that the page before ended in, then what scored less. Two walks, each
#: from its own place in the index: an OR of both would walk there from the top.
READ_PAGE = f"""
    SELECT * FROM (
        ({SCORED} AND score = %(score)s AND id > %(id)s::uuid
            ORDER BY score DESC, id LIMIT %(limit)s)
        UNION ALL
        ({SCORED} AND score < %(score)s
            ORDER BY score DESC, id LIMIT %(limit)s)
    ) AS page
    ORDER BY score DESC, id
    LIMIT %(limit)s
"""
#: A cursor before it is packed: score, id, rank and place of the last row seen.
CURSOR = re.compile(r"(\d{1,3}\.\d\d)\|([0-9a-f-]{36})\|(\d{1,15})\|(\d{1,15})", re.ASCII)


@dataclass(frozen=True, slots=True)
class Cursor:
    """The last row of the page before, and where it stood."""

    score: Decimal
    id: str
    #: Its rank, and its place in the order.
    rank: int
    place: int

    def encode(self) -> str:
        return pack_cursor(f"{self.score}|{self.id}|{self.rank}|{self.place}")

    @classmethod
    def decode(cls, text: str) -> Cursor:
        found = CURSOR.fullmatch(unpack_cursor(text))
        if found is None or (cursor_id := parse_id(found[2])) is None:
            raise bad_cursor()
        position = cls(Decimal(found[1]), cursor_id, int(found[3]), int(found[4]))
        if not 0 < position.rank <= position.place:
            raise bad_cursor()
        return position


@leaderboard.get("/leaderboard")
@open_to(Access.TENANT)
def get_leaderboard() -> Response:
    tenant_id = services().tenants.current(request.environ).id
    role, limit, cursor = parse_query()
    parameters: dict[str, Any] = {"tenant": tenant_id, "role": role, "limit": limit + 1}
    if cursor is not None:
        parameters |= {"score": cursor.score, "id": cursor.id}
    with read_state() as taken:
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
        following = {"role": role, "limit": limit, "cursor": last.encode()}
        headers = next_link("/leaderboard", following)
    document = {"role": role, "entries": entries}
    return Response(orjson.dumps(document), 200, headers, content_type="application/json")


def parse_query() -> tuple[str, int, Cursor | None]:
    """Role, page size and where to go on; anything else is an error."""
    refuse_parameters_besides(("role", "limit", "cursor"))
    try:
        role = NAME.validate_python(request.args.get("role", "general"))
    except ValidationError:
        role = "\x00"
    if "\x00" in role:
        raise refused("role", "must have 1 to 200 characters")
    cursor = request.args.get("cursor")
    return role, parse_limit(PAGE, MOST), None if cursor is None else Cursor.decode(cursor)
