"""Jobs by what they have in common, newest first, at a bounded cost.

States that few jobs are in have their own index: it is read whole and sorted. Everything else is
a walk along the ids, in steps, until there is a page of jobs or the time is up. Then the walk
says how far it got, and can be resumed from there.

Statements are built once for each set of filters. A job may have left the state it was found in.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from itertools import chain
from typing import Any, NamedTuple
from uuid import UUID

import sqlalchemy as sa
from sqlalchemy import CTE, ColumnElement, Connection, Select, bindparam, func, select

from app.reads.job_counts import JOBS, count_dead, count_states
from models.encryption.values import key_ring
from models.jobs.ids import ABOVE_ALL, BELOW_ALL

#: A state with more jobs is walked along the ids: then one does not have to walk far.
FEW = 20_000
FEW_TEXTS = 2_000
#: Rows of the first step of a walk, and of its longest.
FIRST_STEP = 1_000
LONGEST_STEP = 16_000
#: A step that took longer is not followed by a longer one: the rows are far apart.
STEP_SECONDS = 0.02
#: How long a walk goes on.
WALK_SECONDS = 0.18
#: The same where payloads are read, each of up to 64 KiB.
FIRST_PAYLOADS = 200
MOST_PAYLOADS = 2_000
#: Parts of a path into a payload, and characters of the path and the value.
MOST_PATH = 10
MOST_FIELD = 200
#: Error class of those that have none.
NO_CLASS = "none"

TENANT = bindparam("tenant", type_=JOBS.tenant_id.type)
BOTTOM = bindparam("bottom", type_=JOBS.id.type)
TOP = bindparam("top", type_=JOBS.id.type)
STEP = bindparam("step", type_=sa.Integer)
PATH = bindparam("payload_path", type_=sa.ARRAY(sa.Text))
ERROR = func.concat_ws(" ", JOBS.error_class, JOBS.error_message)
#: By the field of ``Wanted`` that they take the value of.
CONDITIONS: Mapping[str, ColumnElement[bool]] = {
    "statuses": JOBS.status.in_(bindparam("statuses", expanding=True)),
    "type": JOBS.type == bindparam("type"),
    "pool": JOBS.pool == bindparam("pool"),
    "error_class": func.coalesce(JOBS.error_class, NO_CLASS) == bindparam("error_class"),
    "text": func.strpos(func.lower(ERROR), func.lower(bindparam("text"))) > 0,
    # Last: the payload is read only of jobs that meet the others. An escaped NUL, which the API
    # accepts from nobody, would be an error; behind an even number of backslashes it is none.
    "payload": sa.case(
        (
            sa.cast(JOBS.payload, sa.Text).op("!~")(r"(^|[^\\])(\\\\)*\\u0000"),
            JOBS.payload.op("#>>", return_type=sa.Text())(PATH),
        )
    )
    == bindparam("payload_value"),
}
States = tuple[str, ...]
Sources = tuple[States, ...]
#: The states that have their own index, and the order in which it is read.
SOURCES: Mapping[States, Sequence[ColumnElement[Any]]] = {
    ("queued",): (JOBS.pool, JOBS.tenant_id, JOBS.dependency, JOBS.priority.desc(), JOBS.id),
    ("scheduled",): (JOBS.pool, JOBS.execute_at),
    ("dispatched", "running"): (JOBS.pool,),
    ("dead",): (JOBS.tenant_id, JOBS.id),
}


def why_unsearchable() -> str | None:
    """Why nothing can be found by a payload or an error message; None if it can."""
    return None if key_ring() is None else "is stored encrypted and cannot be searched"


class PayloadField(NamedTuple):
    """A field of a payload, and its value as text."""

    path: tuple[str, ...]
    value: str


def parse_payload_field(text: str) -> PayloadField | None:
    """``candidate=alice`` or, of nested objects and arrays, ``address.city=Rome``; None if it is
    neither."""
    name, equals, value = text.partition("=")
    path = tuple(part.strip() for part in name.split("."))
    long = len(text) > MOST_FIELD or len(path) > MOST_PATH
    if not equals or not all(path) or long or "\0" in text:
        return None
    return PayloadField(path, value.strip())


class Shape(NamedTuple):
    """The structure of a search, without its values."""

    #: Names of CONDITIONS.
    filters: tuple[str, ...]
    of_tenant: bool
    #: Whether only dead letters are walked.
    dead: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which jobs; what is None or empty lets all pass."""

    statuses: tuple[str, ...] = ()
    type: str | None = None
    pool: str | None = None
    error_class: str | None = None
    #: Somewhere in the error, in whatever case.
    text: str | None = None
    #: Has this value at this path of the payload.
    payload: PayloadField | None = None
    tenant_id: int | None = None
    #: Submitted at or after, and before.
    since: datetime | None = None
    until: datetime | None = None

    @property
    def filters(self) -> dict[str, Any]:
        """Values of the conditions that some jobs of a walk may not meet."""
        found = {name: value for name in CONDITIONS if (value := getattr(self, name))}
        if self.tenant_id is not None and self.statuses == ("dead",):
            del found["statuses"]  # the index of a tenant's dead letters has them in order
        return found

    @property
    def shape(self) -> Shape:
        """What its statements depend on."""
        filters, of_tenant = tuple(self.filters), self.tenant_id is not None
        return Shape(filters, of_tenant, bool(self.statuses) and "statuses" not in filters)


@dataclass(frozen=True, slots=True)
class SearchPage:
    """What a search has come upon."""

    #: Newest first.
    ids: Sequence[str]
    #: Where to go on in the same direction; None at the end.
    cursor: str | None
    #: Whether the time was up before there was a page of them.
    cut: bool = False
    #: Jobs that were looked at.
    looked: int = 0


def id_before(moment: datetime) -> str:
    """An id that is lower than all made at or after the moment, higher than all before."""
    milliseconds = int(moment.astimezone(UTC).timestamp() * 1000)
    return str(UUID(int=max(0, min(milliseconds, 2**48 - 1)) << 80))


@cache
def walk_statement(shape: Shape, newer: bool = False) -> Select[Any]:
    """One step along the ids, or along those of the tenant."""
    passes = sa.and_(sa.true(), *[CONDITIONS[name] for name in shape.filters]).label("passes")
    # The tenant is a range of one: were it an equality, the order would be that of the ids alone,
    # and the planner might walk the primary key through millions of rows of other tenants.
    key, tenant = ([JOBS.tenant_id, JOBS.id], [TENANT]) if shape.of_tenant else ([JOBS.id], [])
    rows = select(JOBS.id, passes).where(
        sa.tuple_(*key) > sa.tuple_(*tenant, BOTTOM), sa.tuple_(*key) < sa.tuple_(*tenant, TOP)
    )
    if shape.dead:
        rows = rows.where(JOBS.status == "dead")
    along = [column.asc() if newer else column.desc() for column in key]
    return found_in(rows.order_by(*along).limit(STEP).cte("looked"), newer)


@cache
def few_statement(sources: Sources, shape: Shape, newer: bool = False) -> Select[Any]:
    """All jobs of some states, and of them those that pass, in order."""
    conditions = [CONDITIONS[name] for name in shape.filters]
    if shape.of_tenant:
        conditions.append(JOBS.tenant_id == TENANT)
    passes = sa.and_(JOBS.id > BOTTOM, JOBS.id < TOP, *conditions).label("passes")
    looked = [
        select(JOBS.id, passes)
        .where(JOBS.status.in_(states))
        .order_by(*SOURCES[states])
        .limit(STEP)
        for states in sources
    ]
    return found_in(sa.union_all(*looked).cte("looked"), newer)


def found_in(looked: CTE, newer: bool) -> Select[Any]:
    """How many were looked at, the last of them, and the first that pass."""
    looked = looked.prefix_with("MATERIALIZED")
    newest, oldest = looked.c.id.desc(), looked.c.id.asc()
    ids = select(sa.cast(looked.c.id, sa.Text)).where(looked.c.passes)
    ids = ids.order_by(oldest if newer else newest).limit(bindparam("limit"))
    last = select(sa.cast(looked.c.id, sa.Text)).order_by(newest if newer else oldest).limit(1)
    return select(
        func.count().label("looked"),
        last.scalar_subquery().label("last"),
        func.array(ids.scalar_subquery()).label("ids"),
    ).select_from(looked)


def search(
    connection: Connection,
    wanted: Wanted,
    limit: int,
    *,
    before: str | None = None,
    after: str | None = None,
    seconds: float = WALK_SECONDS,
    clock: Callable[[], float] = time.monotonic,
) -> SearchPage:
    """At most ``limit`` jobs: the newest, those older than ``before`` or newer than ``after``.

    ``after`` gives those next to it, and goes on towards the newest.
    """
    deadline = clock() + seconds
    newer = after is not None
    asked = values_of(wanted, before, after)
    statement, step = first_step(connection, wanted, limit, newer)
    longest = LONGEST_STEP if wanted.payload is None else MOST_PAYLOADS
    ids: list[str] = []
    looked = 0
    while True:
        began = clock()
        bounds = {"step": step, "limit": limit + 1 - len(ids)}
        found = connection.execute(statement, asked | bounds).one()
        ids += found.ids
        looked += found.looked
        full, ended = len(ids) > limit, found.looked < step
        if full or ended or clock() >= deadline:
            break
        asked["bottom" if newer else "top"] = found.last
        if clock() - began < STEP_SECONDS:
            step = min(2 * step, longest)
    cursor = ids[limit - 1] if full else None if ended else found.last
    shown = ids[:limit]
    return SearchPage(shown[::-1] if newer else shown, cursor, not (full or ended), looked)


def values_of(wanted: Wanted, before: str | None, after: str | None) -> dict[str, Any]:
    """The parameters of a search."""
    bottom = BELOW_ALL if wanted.since is None else id_before(wanted.since)
    top = ABOVE_ALL if wanted.until is None else id_before(wanted.until)
    return {
        "bottom": max(bottom, after or bottom),
        "top": min(top, before or top),
        "tenant": wanted.tenant_id,
        **values_of_filters(wanted.filters),
    }


def values_of_filters(filters: Mapping[str, Any]) -> dict[str, Any]:
    """The parameters of conditions."""
    values = dict(filters)
    if field := values.pop("payload", None):
        values |= {"payload_path": list(field.path), "payload_value": field.value}
    return values


def first_step(
    connection: Connection, wanted: Wanted, limit: int, newer: bool
) -> tuple[Select[Any], int]:
    """The statement of a search, and how many rows it looks at first."""
    sources = few_sources(connection, wanted)
    if sources:
        # More than there are: one step reads them all.
        return few_statement(sources, wanted.shape, newer), 2 * FEW
    # Without a filter all jobs of a step are shown, but for one that says there is more.
    first = FIRST_STEP if wanted.payload is None else FIRST_PAYLOADS
    return walk_statement(wanted.shape, newer), first if wanted.filters else limit + 1


def few_sources(connection: Connection, wanted: Wanted) -> Sources:
    """The indexes that hold all that is wanted and little else; empty if there are none."""
    states = set(wanted.statuses)
    sources = tuple(source for source in SOURCES if states.intersection(source))
    if not sources or wanted.shape.dead or not states.issubset(chain(*sources)):
        return ()
    if wanted.payload is not None:
        return ()  # only the walk has a deadline
    counts = count_states(connection)
    if "dead" in states and counts["dead"] > FEW:
        # The counters count dead letters for ever.
        counts["dead"] = count_dead(connection, FEW + 1)
    # A text is looked for in every message, however long: that takes the walk with its deadline.
    most = FEW if wanted.text is None else FEW_TEXTS
    return sources if sum(counts[state] for state in chain(*sources)) <= most else ()
