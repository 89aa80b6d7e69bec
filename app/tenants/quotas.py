"""Quotas as operators declare and see them.

A change is one statement; the scheduler heeds it a quarter of a second later, workers within
two seconds. What was learned from answers is shown and never written here.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Engine, Row

from app.errors import FieldError, NotFound, ValidationFailed
from models.jobs.held_back import QUOTA_CLOSED
from models.presence import NEWS_SECONDS
from models.store.session import connect

#: What may be declared, and how much of it makes sense.
FIELDS = ("requests_per_minute", "tokens_in_per_minute", "tokens_out_per_minute")
MOST = 1e12

COLUMNS = f"""dependency, requests_per_minute, tokens_in_per_minute, tokens_out_per_minute,
    reading, read_at, CASE WHEN {QUOTA_CLOSED} THEN closed_until END AS closed_until,
    refused"""
READ = f"SELECT {COLUMNS} FROM quotas ORDER BY dependency"
DECLARE = f"""
    INSERT INTO quotas AS quota
        (dependency, requests_per_minute, tokens_in_per_minute, tokens_out_per_minute)
    VALUES (%(dependency)s, %(requests_per_minute)s, %(tokens_in_per_minute)s,
            %(tokens_out_per_minute)s)
    ON CONFLICT (dependency) DO UPDATE
    SET requests_per_minute = excluded.requests_per_minute,
        tokens_in_per_minute = excluded.tokens_in_per_minute,
        tokens_out_per_minute = excluded.tokens_out_per_minute, changed_at = now()
    RETURNING {COLUMNS}
"""
#: Also what was learned, and a closing, as soon as all workers have heard of it: until then they
#: would hand back what is dispatched. The scheduler removes the row when it finds it empty.
CLEAR = f"""
    UPDATE quotas
    SET requests_per_minute = NULL, tokens_in_per_minute = NULL, tokens_out_per_minute = NULL,
        reading = NULL, read_at = NULL, changed_at = now(),
        closed_until = CASE WHEN {QUOTA_CLOSED}
            THEN least(closed_until, now() + interval '{NEWS_SECONDS:g} seconds') END
    WHERE dependency = %(dependency)s
    RETURNING dependency
"""


@dataclass(frozen=True, slots=True)
class Declared:
    """The quota of a dependency, as far as anybody knows."""

    dependency: str
    #: A minute; None is not declared.
    requests_per_minute: float | None
    tokens_in_per_minute: float | None
    tokens_out_per_minute: float | None
    #: What its last answer told: limit, what is left, seconds until the reset, by kind.
    reading: Mapping[str, tuple[float, float, float]]
    read_at: datetime | None
    #: None while it is open.
    closed_until: datetime | None
    #: Calls it refused so far.
    refused: int

    @property
    def is_empty(self) -> bool:
        """Whether it says nothing: it was cleared, and is about to go."""
        limits = (self.requests_per_minute, self.tokens_in_per_minute, self.tokens_out_per_minute)
        return not (any(limits) or self.reading or self.closed_until)


def read_quotas(connection: Connection) -> list[Declared]:
    """All quotas that there are, by dependency."""
    found = [_declared(row) for row in connection.exec_driver_sql(READ)]
    return [quota for quota in found if not quota.is_empty]


def declare_quota(
    engine: Engine,
    dependency: str,
    limits: Mapping[str, float | None],
    dependencies: Collection[str],
) -> Declared:
    """Say what a dependency takes in a minute, in place of what was said before."""
    check_limits(limits)
    check_dependency(dependency, dependencies)
    values = {name: limits.get(name) for name in FIELDS}
    with connect(engine) as connection:
        row = connection.exec_driver_sql(DECLARE, {"dependency": dependency, **values}).one()
    return _declared(row)


def clear_quota(engine: Engine, dependency: str) -> None:
    """Forget what was declared and what was learned; what is learned next counts again."""
    if "\0" not in dependency:  # which no row can hold
        with connect(engine) as connection:
            if connection.exec_driver_sql(CLEAR, {"dependency": dependency}).first() is not None:
                return
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
    """A quota of what no job type depends on would hold nothing back: most likely a typo."""
    if dependency not in dependencies:
        known = ", ".join(sorted(dependencies)) or "none"
        raise NotFound(
            f"No job type depends on {dependency!r:.100}. Dependencies are: {known:.500}."
        )


def _declared(row: Row[Any]) -> Declared:
    reading = {kind: (told[0], told[1], told[2]) for kind, told in (row.reading or {}).items()}
    return Declared(
        dependency=row.dependency,
        requests_per_minute=row.requests_per_minute,
        tokens_in_per_minute=row.tokens_in_per_minute,
        tokens_out_per_minute=row.tokens_out_per_minute,
        reading=reading,
        read_at=row.read_at,
        closed_until=row.closed_until,
        refused=row.refused,
    )
