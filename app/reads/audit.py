"""The audit log, as operators list and export it.

Pages go by time and id, along an index, and continue behind the last act shown. An act is dated
when it is written and seen when it is committed, a moment later: an export that ends now may miss
one that is being committed.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, NamedTuple

from sqlalchemy import Connection, Engine, Row, Select, select, tuple_

from models.schema import AuditRow
from models.store.session import connect

ACTS = AuditRow.__table__.c
#: Acts that an export reads at once.
BATCH = 1_000


@dataclass(frozen=True, slots=True)
class AuditFilter:
    """Which acts are wanted; None: any."""

    tenant: str | None = None
    who: str | None = None
    what: str | None = None
    #: From this moment on, and before that one.
    since: datetime | None = None
    until: datetime | None = None


class AuditPlace(NamedTuple):
    """Where a page ended."""

    at: datetime
    id: int

    def __str__(self) -> str:
        return f"{self.at.isoformat()}|{self.id}"


def parse_audit_place(text: str) -> AuditPlace | None:
    """A place as a cursor holds it; None for anything else."""
    moment, _, number = text.partition("|")
    try:
        at = datetime.fromisoformat(moment)
    except ValueError:
        return None
    known = at.tzinfo is not None and number.isascii() and number.isdecimal() and len(number) < 19
    return AuditPlace(at, int(number)) if known else None


def place_of(row: Row[Any]) -> AuditPlace:
    """The place behind an act."""
    return AuditPlace(row.at, row.id)


def read_acts(
    connection: Connection, wanted: AuditFilter, limit: int, before: AuditPlace | None = None
) -> Sequence[Row[Any]]:
    """The newest acts that are wanted, behind that place."""
    statement = matching(wanted).order_by(ACTS.at.desc(), ACTS.id.desc()).limit(limit)
    if before is not None:
        statement = statement.where(tuple_(ACTS.at, ACTS.id) < tuple_(*before))
    return connection.execute(statement).all()


def matching(wanted: AuditFilter) -> Select[Any]:
    """Every column of the acts that are wanted."""
    statement = select(*ACTS)
    for column in (ACTS.tenant, ACTS.who, ACTS.what):
        if (value := getattr(wanted, column.name)) is not None:
            statement = statement.where(column == value)
    if wanted.since is not None:
        statement = statement.where(ACTS.at >= wanted.since)
    if wanted.until is not None:
        statement = statement.where(ACTS.at < wanted.until)
    return statement


def export_acts(engine: Engine, wanted: AuditFilter) -> Iterator[dict[str, Any]]:
    """All acts that are wanted, oldest first; no transaction stays open in between."""
    oldest_first = matching(wanted).order_by(ACTS.at, ACTS.id).limit(BATCH)
    after: AuditPlace | None = None
    while True:
        page = oldest_first
        if after is not None:
            page = page.where(tuple_(ACTS.at, ACTS.id) > tuple_(*after))
        with connect(engine) as connection:
            rows = connection.execute(page).all()
        # SQLAlchemy's names are of a class of their own, which JSON writers refuse.
        yield from ({str(name): value for name, value in row._mapping.items()} for row in rows)
        if len(rows) < BATCH:
            return
        after = place_of(rows[-1])
