"""``/leaderboard``: scored applications of a role, best first.

Ties share a rank and keep the order of submission. Pages are found by key, so the thousandth
is as fast as the first; the cursor contains the rank.
"""

from __future__ import annotations

import contextlib
import re
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any

from flask import Blueprint, Response, request
from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection

from app.api.http.query import (
    bad_cursor,
    next_link,
    pack_cursor,
    parse_limit,
    parse_partial,
    unpack_cursor,
)
from app.api.http.reply import Reply, fields_of
from app.api.http.state import read_standby
from app.api.http.turns import in_turns, long_read
from app.api.openapi.declared import (
    LAG,
    LINK,
    MISSING,
    PARTIAL,
    Parameter,
    Returns,
    for_tenants,
    paging,
)
from app.api.schemas import answers
from app.api.schemas.requests import Name
from app.api.services import current_tenant
from app.errors import invalid_field
from app.reads.contents import readable_rationale
from app.tenants.scopes import Scope
from models.jobs.ids import parse_id

leaderboard = Blueprint("leaderboard", __name__)

PAGE = 50
MOST = 500
#: Stripped as in submissions, or a role could be submitted to but not viewed.
NAME = TypeAdapter(Name)
ROLE = Parameter("role", "The role to rank.", {**NAME.json_schema(), "default": "general"})

SCORED = """
    SELECT id, candidate, score, rationale, scored_at,
           CASE WHEN rationale IS NULL THEN record::text END AS record
    FROM applications
    WHERE tenant_id = %(tenant)s AND role = %(role)s AND score IS NOT NULL"""
READ_FIRST_PAGE = f"""{SCORED}
    ORDER BY score DESC, id
    LIMIT %(limit)s
"""
#: The rest of the tie in which the previous page ended, then lower scores. Two index scans, each
#: from its own position: an OR of both conditions would scan from the top.
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Cursor:
    """The position of a row: the next page begins after it."""

    score: Decimal
    id: str
    rank: int
    #: Position in the order, not shared by ties.
    place: int

    def __str__(self) -> str:
        return f"{self.score}|{self.id}|{self.rank}|{self.place}"

    def encode(self) -> str:
        return pack_cursor(str(self))

    @classmethod
    def decode(cls, text: str) -> Cursor:
        found = PACKED.fullmatch(unpack_cursor(text))
        if found is None or (cursor_id := parse_id(found[2])) is None:
            raise bad_cursor()
        rank, place = int(found[3]), int(found[4])
        if not 0 < rank <= place:
            raise bad_cursor()
        return cls(score=Decimal(found[1]), id=cursor_id, rank=rank, place=place)


@dataclass(frozen=True, slots=True, kw_only=True)
class RankedScore(Cursor):
    """A scored application and its position."""

    candidate: str
    rationale: str | None
    scored_at: datetime | None


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
        fields = dict(row._mapping)
        told = (fields["rationale"], fields.pop("record"))
        fields["rationale"] = readable_rationale(*told, tenant_id, str(row.id))
        last = RankedScore(rank=rank, place=place, **fields)
        entries.append(last)
    return entries


@leaderboard.get("/leaderboard")
@for_tenants(
    Scope.READ,
    "Scored applications of a role, best first",
    Returns(200, answers.Leaderboard, (LINK, LAG, MISSING)),
    query=(ROLE, PARTIAL, *paging(PAGE, MOST)),
)
@long_read
def get_leaderboard() -> Response:
    tenant_id = current_tenant().id
    role = parse_role(request.args.get("role", "general"))
    cursor, limit = request.args.get("cursor"), parse_limit(PAGE, MOST)
    parse_partial()
    after = None if cursor is None else Cursor.decode(cursor)
    with read_standby() as connection:
        found = read_page(connection, tenant_id, role, limit, after)
    entries = [
        fields_of(answers.LeaderboardEntry, entry) | {"score": float(entry.score)}
        for entry in in_turns(found[:limit])
    ]
    last = str(found[limit - 1]) if len(found) > limit else None
    return Reply({"role": role, "entries": entries}, 200, next_link(limit, last, role=role))


def parse_role(text: str) -> str:
    """A role, validated as in submissions."""
    with contextlib.suppress(ValidationError):
        if "\x00" not in text:
            return NAME.validate_python(text)
    raise invalid_field("role", "must have 1 to 200 characters")
