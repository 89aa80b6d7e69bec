"""QuotaPacers: how many jobs the quotas of dependencies let through now.

The policy is :mod:`app.policy.quota`. Here it is fed with the rows of ``quotas``: what operators
declared, what workers read from the answers, and until when a dependency that refused is closed.
The dispatcher asks each turn and says what it dispatched.

How full the buckets are is known to this process alone: a scheduler that takes over begins with
empty ones, and with what the last reading says.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from app.policy.quota import KINDS, READING_SECONDS, Left, QuotaBucket, QuotaPacer
from models.leadership import STILL_LEADER, Leader
from models.store.session import connect
from tasks.registry import JobType

logger = logging.getLogger(__name__)

#: Quotas are looked at this often.
READ_SECONDS = 0.25
#: What nobody needs any more is looked for this often.
FORGET_SECONDS = 60.0

READ_QUOTAS = """
    SELECT quota.dependency, requests_per_minute, tokens_in_per_minute, tokens_out_per_minute,
           reading, extract(epoch FROM now() - read_at)::float8 AS age_seconds,
           extract(epoch FROM closed_until - now())::float8 AS closed_seconds,
           calls, tokens_in, tokens_out, coalesce(counts.dispatched, 0)::int AS dispatched
    FROM quotas AS quota
    LEFT JOIN (
        SELECT dependency, sum(dispatched) AS dispatched FROM job_counts
        WHERE tenant_id = 0 GROUP BY dependency
    ) AS counts USING (dependency)
    WHERE dependency = ANY (%(dependencies)s::text[])
"""
#: What an operator said before is left as it is.
DECLARE_FIRST = f"""
    INSERT INTO quotas AS quota
        (dependency, requests_per_minute, tokens_in_per_minute, tokens_out_per_minute)
    SELECT %(dependency)s, %(requests)s, %(tokens_in)s, %(tokens_out)s WHERE {STILL_LEADER}
    ON CONFLICT (dependency) DO UPDATE
    SET requests_per_minute = excluded.requests_per_minute,
        tokens_in_per_minute = excluded.tokens_in_per_minute,
        tokens_out_per_minute = excluded.tokens_out_per_minute, changed_at = now()
    WHERE num_nonnulls(quota.requests_per_minute, quota.tokens_in_per_minute,
                       quota.tokens_out_per_minute) = 0
"""
#: What was only learned is forgotten when nobody has reported it for an hour.
FORGET = f"""
    DELETE FROM quotas
    WHERE num_nonnulls(requests_per_minute, tokens_in_per_minute, tokens_out_per_minute) = 0
      AND coalesce(closed_until < now() - interval '1 minute', true)
      AND coalesce(read_at < now() - interval '{READING_SECONDS:g} seconds', true)
      AND {STILL_LEADER}
"""


@dataclass(slots=True)
class Known:
    """A dependency's pacer, and the calls that it has heard of."""

    pacer: QuotaPacer
    calls: int = 0
    tokens_in: int = 0
    tokens_out: int = 0


class QuotaPacers:
    """The pacers of all dependencies that job types declare."""

    def __init__(
        self,
        engine: Engine,
        leader: Leader,
        types: Mapping[str, JobType],
        declared: Mapping[str, Mapping[Any, float]] | None = None,
    ) -> None:
        self._engine = engine
        self._leader = leader
        self._dependencies = sorted({one.dependency for one in types.values() if one.dependency})
        #: Limits to begin with, by dependency and kind.
        self._declared = {**(declared or {})}
        for name in self._declared.keys() - set(self._dependencies):
            logger.warning("FAIRLINE_QUOTAS: no job type depends on %s", name)
            del self._declared[name]
        self._epoch: int | None = None
        self._known: dict[str, Known] = {}
        #: Those that the last rooms were told of.
        self.limited: frozenset[str] = frozenset()
        self._now = 0.0
        self._read_due = self._forget_due = 0.0

    def rooms(self, now: float) -> dict[str, int]:
        """Jobs that each dependency with a quota may still be given; 0 for a closed one."""
        self._now = now
        if self._leader.epoch != self._epoch:
            self._begin()
        if not 0.0 < self._read_due - now <= READ_SECONDS:
            self._look(now)
            self._read_due = now + READ_SECONDS
        if not 0.0 < self._forget_due - now <= FORGET_SECONDS:
            self._forget()
            self._forget_due = now + FORGET_SECONDS
        rooms = {name: known.pacer.room(now) for name, known in self._known.items()}
        told = {name: room for name, room in rooms.items() if room is not None}
        self.limited = frozenset(told)
        return told

    def spend(self, dependency: str, jobs: int) -> None:
        """So many jobs of the dependency were dispatched."""
        if known := self._known.get(dependency):
            known.pacer.spend(jobs, self._now)

    def give_back(self, dependency: str, jobs: int) -> None:
        """So many of them could not be sent."""
        self.spend(dependency, -jobs)

    def _begin(self) -> None:
        """A new term: another scheduler may have spent what we thought was left."""
        self._known.clear()
        self._read_due = self._forget_due = 0.0
        self._epoch = self._leader.epoch
        with connect(self._engine) as connection:
            for dependency, limits in sorted(self._declared.items()):
                values = {kind: limits.get(f"{kind}_per_minute") for kind in KINDS[:3]}
                connection.exec_driver_sql(
                    DECLARE_FIRST, {"dependency": dependency, "epoch": self._epoch, **values}
                )

    def _look(self, now: float) -> None:
        with connect(self._engine) as connection:
            rows = connection.exec_driver_sql(
                READ_QUOTAS, {"dependencies": self._dependencies}
            ).all()
        for name in self._known.keys() - {row.dependency for row in rows}:
            del self._known[name]
        for row in rows:
            known = self._known.get(row.dependency) or self._meet(row)
            known.pacer.used(
                row.calls - known.calls,
                row.tokens_in - known.tokens_in,
                row.tokens_out - known.tokens_out,
            )
            known.calls = row.calls
            known.tokens_in, known.tokens_out = row.tokens_in, row.tokens_out
            was_closed = known.pacer.closed(now)
            known.pacer.look(quota_of(row), now)
            if known.pacer.closed(now) and not was_closed:
                logger.warning("%s refuses: closed for %.1f s", row.dependency, row.closed_seconds)

    def _meet(self, row: Any) -> Known:
        known = Known(QuotaPacer(), row.calls, row.tokens_in, row.tokens_out)
        known.pacer.learn_means(row.calls, row.tokens_in, row.tokens_out)
        self._known[row.dependency] = known
        return known

    def _forget(self) -> None:
        with connect(self._engine) as connection:
            connection.exec_driver_sql(FORGET, {"epoch": self._leader.epoch})


def quota_of(row: Any) -> QuotaBucket:
    """The row as the policy wants it."""
    declared = {kind: getattr(row, f"{kind}_per_minute") for kind in KINDS[:3]}
    return QuotaBucket(
        declared={kind: limit for kind, limit in declared.items() if limit is not None},
        reading={kind: Left(*said) for kind, said in (row.reading or {}).items()},
        age_seconds=max(0.0, row.age_seconds or 0.0),
        closed_seconds=row.closed_seconds,
        dispatched=row.dispatched,
    )
