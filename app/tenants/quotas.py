"""Quotas as operators declare and see them.

A change is one statement; the scheduler applies it a quarter of a second later, workers within
two seconds. What was learned from answers is shown and never written here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Connection, Engine, RowMapping, case, func, null, select, update
from sqlalchemy.dialects.postgresql import insert

from app.errors import FieldError, NotFound, ValidationFailed
from models.audit import Act, differences, record, recording
from models.presence import NEWS_SECONDS
from models.schema import Base

#: What may be declared, and how much of it makes sense.
FIELDS = ("requests_per_minute", "tokens_in_per_minute", "tokens_out_per_minute")
MOST = 1e12

QUOTAS = Base.metadata.tables["quotas"]
QUOTA = QUOTAS.c
CLOSED = QUOTA.closed_until > func.now()
COLUMNS = (
    *[QUOTA[name] for name in ("dependency", *FIELDS, "reading", "read_at", "refused")],
    case((CLOSED, QUOTA.closed_until)).label("closed_until"),
)


@dataclass(frozen=True, slots=True)
class Declared:
    """The quota of a dependency, as far as it is known."""

    dependency: str
    #: None: not declared.
    requests_per_minute: float | None
    tokens_in_per_minute: float | None
    tokens_out_per_minute: float | None
    #: From its last answer: limit, what is left, seconds until the reset, by kind.
    reading: Mapping[str, tuple[float, float, float]]
    read_at: datetime | None
    #: None while it is open.
    closed_until: datetime | None
    #: Calls it refused so far.
    refused: int

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing: it was cleared, and is about to go."""
        declared = any(getattr(self, name) for name in FIELDS)
        return not (declared or self.reading or self.closed_until)


def read_quotas(connection: Connection) -> list[Declared]:
    """All quotas that there are, by dependency."""
    rows = connection.execute(select(*COLUMNS).order_by(QUOTA.dependency)).mappings()
    return [quota for quota in map(_declared, rows) if not quota.is_empty]


def declare_quota(
    engine: Engine,
    dependency: str,
    limits: Mapping[str, float | None],
    dependencies: Collection[str],
) -> Declared:
    """Set what a dependency accepts per minute, in place of what was declared before."""
    check_limits(limits)
    check_dependency(dependency, dependencies)
    values = {name: limits.get(name) for name in FIELDS}
    declare = (
        insert(QUOTAS)
        .values(dependency=dependency, **values)
        .on_conflict_do_update(
            index_elements=["dependency"], set_={**values, "changed_at": func.now()}
        )
        .returning(*COLUMNS)
    )
    with recording(engine) as connection:
        known = select(*[QUOTA[name] for name in FIELDS]).where(QUOTA.dependency == dependency)
        row = connection.execute(known.with_for_update()).mappings().first()
        declared = _declared(connection.execute(declare).mappings().one())
        before, after = differences(dict.fromkeys(FIELDS) | dict(row or {}), values)
        if after:
            record(connection, Act.QUOTA_DECLARE, dependency, before=before, after=after)
        return declared


def clear_quota(engine: Engine, dependency: str) -> Declared:
    """Forget what was declared and what was learned; what is learned next counts again.

    Returns what is now forgotten.
    """
    # A closing lasts until all workers have read of it: until then they would hand back what is
    # dispatched. The scheduler removes the row when it finds it empty.
    soon = func.least(QUOTA.closed_until, func.now() + timedelta(seconds=NEWS_SECONDS))
    before = select(*COLUMNS).where(QUOTA.dependency == dependency).with_for_update().cte("before")
    clear = (
        update(QUOTAS)
        .where(QUOTA.dependency == before.c.dependency)
        .values(dict.fromkeys((*FIELDS, "reading", "read_at"), null()))
        .values(changed_at=func.now(), closed_until=case((CLOSED, soon)))
        .returning(*before.c)
    )
    if "\0" not in dependency:  # which no row can hold
        with recording(engine) as connection:
            if row := connection.execute(clear).mappings().first():
                cleared = _declared(row)
                if not cleared.is_empty:
                    declared = {name: value for name in FIELDS if (value := row[name])}
                    record(connection, Act.QUOTA_CLEAR, dependency, before=declared)
                return cleared
    raise NotFound(f"There is no quota for {dependency!r:.100}.")


def check_limits(limits: Mapping[str, float | None]) -> None:
    """At least one, and each a number that a limit can be."""
    wrong = [
        FieldError(name, "is not a field" if name not in FIELDS else "must be more than 0")
        for name, value in limits.items()
        if name not in FIELDS
        or (value is not None and not (math.isfinite(value) and 0 < value <= MOST))
    ]
    if not wrong and not any(limits.values()):
        wrong = [FieldError("(body)", f"must name one of {', '.join(FIELDS)}")]
    if wrong:
        raise ValidationFailed(errors=tuple(wrong))


def check_dependency(dependency: str, dependencies: Collection[str]) -> None:
    """A quota of what no job type depends on would have no effect: most likely a typo."""
    if dependency not in dependencies:
        known = ", ".join(sorted(dependencies)) or "none"
        raise NotFound(
            f"No job type depends on {dependency!r:.100}. Dependencies are: {known:.500}."
        )


def _declared(row: RowMapping) -> Declared:
    reading = {kind: (of[0], of[1], of[2]) for kind, of in (row["reading"] or {}).items()}
    return Declared(**{**row, "reading": reading})
