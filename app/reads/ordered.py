"""Jobs in the order of a column other than their age, at a bounded cost.

Only where an index holds what is wanted: states that few jobs are in are read whole and sorted,
and the ended jobs of a tenant are walked along their own index, a bounded number for a page.
Pages continue behind the last job shown. Times that still run are measured at ``as_of``, which is
the same for all pages, so that nothing overtakes the place where a page ended.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import cache
from math import isfinite
from typing import Any, NamedTuple

import sqlalchemy as sa
from sqlalchemy import ColumnElement, Connection, Select, bindparam, func, select

from app.reads.job_counts import JOBS
from app.reads.search import (
    BOTTOM,
    CONDITIONS,
    FEW,
    SOURCES,
    STEP,
    TENANT,
    TOP,
    Sources,
    Wanted,
    few_sources,
    values_of,
)
from models.jobs.ids import parse_id

#: Ended jobs of a tenant that one page looks at, if a filter may refuse some.
SCAN_ROWS = 5_000
#: Below every duration: jobs without the time that is sorted by.
NONE = -1e15

AS_OF = bindparam("as_of", type_=JOBS.created_at.type)
LIMIT = bindparam("limit", type_=sa.Integer)
KEY, ID = bindparam("key", type_=sa.Text), bindparam("id", type_=JOBS.id.type)
DUE = func.greatest(JOBS.created_at, JOBS.execute_at)


def seconds(later: ColumnElement[Any], earlier: ColumnElement[Any]) -> ColumnElement[Any]:
    return sa.cast(sa.extract("epoch", later - earlier), sa.Double)


#: What states of few jobs can be sorted by.
KEYS = {
    "wait": sa.case(
        (sa.or_(JOBS.crashes > 0, JOBS.replays > 0), None),
        (JOBS.status.in_(("scheduled", "queued", "dispatched")), seconds(AS_OF, DUE)),
        (JOBS.started_at >= DUE, seconds(JOBS.started_at, DUE)),
    ),
    "duration": sa.case(
        (JOBS.status == "running", seconds(AS_OF, JOBS.started_at)),
        (JOBS.finished_at.is_not(None), seconds(JOBS.finished_at, JOBS.started_at)),
    ),
    "attempts": sa.cast(JOBS.attempt, sa.Double),
    "ended": sa.cast(sa.extract("epoch", JOBS.finished_at), sa.Double),
}
#: By the order in which they ended.
ENDED = "ended"
#: A place in an order: when the first page was read, the key, which is the transaction of an end or
#: a number, and the id.
PLACE = re.compile(r"(\S+) (?:(x)(\d{1,19})|(-?\d+(?:\.\d+)?(?:e[+-]?\d+)?)) (\S+)", re.ASCII)


class OrderedPlace(NamedTuple):
    """The last job of a page, in the order of the list."""

    as_of: datetime
    key: str
    id: str
    #: Whether the key is the transaction of its end, instead of a number.
    walked: bool = False

    def __str__(self) -> str:
        return f"{self.as_of.isoformat()} {'x' * self.walked}{self.key} {self.id}"


@dataclass(frozen=True, slots=True)
class OrderedPage:
    """Jobs in the order that was asked for."""

    ids: Sequence[str]
    #: Where the next page begins; None at the end.
    cursor: OrderedPlace | None
    #: Whether there may be more although the page is not full.
    cut: bool = False


def orders_of(connection: Connection, wanted: Wanted) -> frozenset[str]:
    """What the jobs that are wanted can be sorted by, besides their age."""
    if wanted.payload is not None:
        return frozenset()  # a page would read as many payloads as there are rows
    if few_sources(connection, wanted):
        return frozenset(KEYS)
    return frozenset({ENDED} if wanted.tenant_id is not None else ())


def parse_ordered(text: str) -> OrderedPlace:
    """The place that a text names; ValueError if it names none."""
    found = PLACE.fullmatch(text)
    if found is None:
        raise ValueError(text)
    as_of, walked, xid, number, job_id = found.groups()
    moment, known = datetime.fromisoformat(as_of), parse_id(job_id)
    if not (known and moment.tzinfo and isfinite(float(xid or number))):
        raise ValueError(text)
    return OrderedPlace(moment, xid or repr(float(number)), known, bool(walked))


def find_ordered(
    connection: Connection,
    wanted: Wanted,
    limit: int,
    order: str,
    *,
    descending: bool,
    after: OrderedPlace | None,
) -> OrderedPage:
    """At most ``limit`` jobs behind a place; ``order`` is one of ``orders_of``.

    From the beginning if meanwhile so many jobs have ended, or so few are left, that the order is
    read in the other way and the place means nothing.
    """
    sources = few_sources(connection, wanted)
    if after and after.walked == bool(sources):
        after = None
    as_of = after.as_of if after else connection.execute(select(func.now())).scalar_one()
    filters = tuple(name for name in CONDITIONS if getattr(wanted, name))
    asked: dict[str, Any] = {
        **values_of(wanted, None, None),
        **{name: getattr(wanted, name) for name in filters},
        "as_of": as_of,
        "limit": limit + 1,
        "step": 2 * FEW,
    }
    if after:
        asked |= {"key": after.key, "id": after.id}
    shape = filters, wanted.tenant_id is not None, descending, after is not None
    if sources:
        rows = connection.execute(sorted_statement(sources, order, *shape), asked).all()
        looked = 0
    else:
        asked["step"] = SCAN_ROWS if filters or wanted.since or wanted.until else limit + 1
        rows = connection.execute(ended_statement(*shape), asked).all()
        looked = rows[0].looked if rows else 0
    found = [row for row in rows if row.passes]
    cut = not sources and looked == asked["step"] and len(found) <= limit
    last = found[limit - 1] if len(found) > limit else rows[-1] if cut else None
    cursor = OrderedPlace(as_of, last.key, last.id, not sources) if last else None
    return OrderedPage([row.id for row in found[:limit]], cursor, cut)


def passing(filters: tuple[str, ...], of_tenant: bool) -> ColumnElement[bool]:
    conditions = [JOBS.id > BOTTOM, JOBS.id < TOP, *(CONDITIONS[name] for name in filters)]
    return sa.and_(*conditions, *([JOBS.tenant_id == TENANT] if of_tenant else []))


@cache
def sorted_statement(
    sources: Sources,
    order: str,
    filters: tuple[str, ...],
    of_tenant: bool,
    descending: bool,
    continued: bool,
) -> Select[Any]:
    """All jobs of some states, read from their indexes, and of them those that pass, sorted."""
    key = func.coalesce(KEYS[order], NONE).label("key")
    passes = passing(filters, of_tenant).label("passes")
    looked = sa.union_all(
        *[
            select(JOBS.id, key, passes)
            .where(JOBS.status.in_(states))
            .order_by(*SOURCES[states])
            .limit(STEP)
            for states in sources
        ]
    ).cte("looked")
    place = sa.tuple_(looked.c.key, looked.c.id)
    rows = select(sa.cast(looked.c.id, sa.Text), sa.cast(looked.c.key, sa.Text), looked.c.passes)
    rows = rows.where(looked.c.passes)
    if continued:
        behind = sa.tuple_(sa.cast(KEY, sa.Double), ID)
        rows = rows.where(place < behind if descending else place > behind)
    along = [part.desc() if descending else part.asc() for part in (looked.c.key, looked.c.id)]
    return rows.order_by(*along).limit(LIMIT)


@cache
def ended_statement(
    filters: tuple[str, ...], of_tenant: bool, descending: bool, continued: bool
) -> Select[Any]:
    """A step along the jobs of a tenant that ended: those that pass, then the last of the step."""
    # As in a walk along the ids, the tenant is a range of one.
    key = [JOBS.tenant_id, JOBS.ended_xid, JOBS.id]
    bound = sa.tuple_(TENANT, sa.cast(KEY, JOBS.ended_xid.type), ID)
    rows = select(JOBS.id, JOBS.ended_xid.label("key"), passing(filters, False).label("passes"))
    rows = rows.where(JOBS.ended_xid.is_not(None), JOBS.tenant_id >= TENANT)
    rows = rows.where(JOBS.tenant_id <= TENANT)
    if continued:
        rows = rows.where(sa.tuple_(*key) < bound if descending else sa.tuple_(*key) > bound)
    along = [column.desc() if descending else column.asc() for column in key]
    looked = rows.order_by(*along).limit(STEP).cte("looked").prefix_with("MATERIALIZED")
    total = select(func.count()).select_from(looked).scalar_subquery()
    columns = (sa.cast(looked.c.id, sa.Text), sa.cast(looked.c.key, sa.Text))
    order = [
        column.desc() if descending else column.asc() for column in (looked.c.key, looked.c.id)
    ]
    back = [column.asc() if descending else column.desc() for column in (looked.c.key, looked.c.id)]
    found = select(*columns, looked.c.passes, total.label("looked"), sa.literal(0).label("part"))
    shown = found.where(looked.c.passes).order_by(*order).limit(LIMIT).subquery()
    end = select(*columns, sa.false(), total, sa.literal(1)).order_by(*back).limit(1).subquery()
    both = sa.union_all(select(shown), select(end)).subquery()
    return select(both).order_by(both.c.part)
