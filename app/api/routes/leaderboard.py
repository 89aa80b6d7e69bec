"""``/leaderboard``: scored applications of a role, best first.

Ties share a rank and keep the order of submission. Pages are found by key, so the
thousandth costs what the first does; the cursor carries the rank along.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

import orjson
from flask import Blueprint, Response, request
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection

from app.api.auth.access import Access, open_to
from app.api.http.query import (
    bad_cursor,
    next_link,
    pack_cursor,
    parse_limit,
    refused,
    unpack_cursor,
)
from app.api.http.state import read_state
from app.api.openapi.declared import DeclaredResponse, Parameter, described
from app.api.openapi.parts import CURSOR, LINK, page_limit
from app.api.schemas import answers
from app.api.schemas.requests import Name
from app.api.services import current_services
from app.reads.times import rfc3339
from models.jobs.ids import parse_id

leaderboard = Blueprint("leaderboard", __name__)

PAGE = 50
MOST = 500
#: Trimmed as a submission's is, or a role could be submitted to but not looked at.
NAME = TypeAdapter(Name)
ROLE = Parameter("role", "Whose leaderboard.", {**NAME.json_schema(), "default": "general"})

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
PACKED = re.compile(r"(\d{1,3}\.\d\d)\|([0-9a-f-]{36})\|(\d{1,15})\|(\d{1,15})", re.ASCII)


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
        found = PACKED.fullmatch(unpack_cursor(text))
        if found is None or (cursor_id := parse_id(found[2])) is None:
            raise bad_cursor()
        position = cls(Decimal(found[1]), cursor_id, int(found[3]), int(found[4]))
        if not 0 < position.rank <= position.place:
            raise bad_cursor()
        return position


@dataclass(frozen=True, slots=True)
class RankedScore:
    """A scored application and where it stands."""

    rank: int
    place: int
    id: str
    candidate: str
    score: Decimal
    rationale: str | None
    scored_at: datetime | None

    @property
    def cursor(self) -> Cursor:
        """What begins the page after it."""
        return Cursor(self.score, self.id, self.rank, self.place)


def read_page(
    connection: Connection, tenant_id: int, role: str, limit: int, cursor: Cursor | None
) -> list[RankedScore]:
    """A page and, if there is more, the first entry of the next one."""
    parameters: dict[str, Any] = {"tenant": tenant_id, "role": role, "limit": limit + 1}
    if cursor is not None:
        parameters |= {"score": cursor.score, "id": cursor.id}
    last = cursor
    entries = []
    for row in connection.exec_driver_sql(READ_PAGE if cursor else READ_FIRST_PAGE, parameters):
        place = last.place + 1 if last else 1
        rank = last.rank if last and last.score == row.score else place
        entries.append(RankedScore(rank, place, **row._mapping))
        last = entries[-1].cursor
    return entries


@leaderboard.get("/leaderboard")
@open_to(Access.TENANT)
@described(
    "Scored applications of a role, best first",
    DeclaredResponse(200, "A page of them.", answers.Leaderboard, (LINK,)),
    query=(ROLE, page_limit(PAGE, MOST), CURSOR),
)
def get_leaderboard() -> Response:
    tenant_id = current_services().tenants.current(request.environ).id
    role, limit, cursor = parse_query()
    with read_state() as connection:
        found = read_page(connection, tenant_id, role, limit, cursor)
    entries = [
        {
            "rank": entry.rank,
            "id": entry.id,
            "candidate": entry.candidate,
            "score": float(entry.score),
            "rationale": entry.rationale,
            "scored_at": rfc3339(entry.scored_at),
        }
        for entry in found[:limit]
    ]
    headers = {}
    if len(found) > limit:
        following = {"role": role, "limit": limit, "cursor": found[limit - 1].cursor.encode()}
        headers = next_link("/leaderboard", following)
    document = {"role": role, "entries": entries}
    return Response(orjson.dumps(document), 200, headers, content_type="application/json")


def parse_query() -> tuple[str, int, Cursor | None]:
    """Role, page size and where to go on."""
    role = parse_role(request.args.get("role", "general"))
    cursor = request.args.get("cursor")
    return role, parse_limit(PAGE, MOST), None if cursor is None else Cursor.decode(cursor)


def parse_role(text: str) -> str:
    """``role``, as submissions have it."""
    try:
        role = NAME.validate_python(text)
    except ValidationError:
        role = "\x00"
    if "\x00" in role:
        raise refused("role", "must have 1 to 200 characters")
    return role
