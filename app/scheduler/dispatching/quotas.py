"""Quota pacers: how many jobs may be dispatched now to each dependency that has a quota.

The policy is :mod:`app.policy.quota`, fed with the rows of ``quotas``: what operators declared,
what workers read from responses, and until when a dependency that refused is closed. The buckets
are in memory: a scheduler that takes over begins with empty ones and the last reading.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from sqlalchemy import Engine

from app.policy.quota import DECLARED, READING_SECONDS, QuotaPacer, quota_of
from app.scheduler.role import RoleQueries
from models.leadership import STILL_LEADER, Leader
from models.store.errors import StatementTooSlow
from models.store.prepared import SHORT_LOCK_WAIT, PreparedStatement
from tasks.registry import JobType

logger = logging.getLogger(__name__)

#: Quotas are read this often.
READ_SECONDS = 0.25
#: Quotas that are no longer needed are deleted this often.
FORGET_SECONDS = 60.0
#: Limits to begin with that could not be written are tried again this often.
DECLARE_SECONDS = 10.0

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
PREPARED = PreparedStatement("read_quotas", READ_QUOTAS)
#: What an operator said before is left as it is.
DECLARE_FIRST = f"""{SHORT_LOCK_WAIT}
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
    DELETE FROM quotas WHERE dependency IN (
        SELECT dependency FROM quotas
        WHERE num_nonnulls(requests_per_minute, tokens_in_per_minute, tokens_out_per_minute) = 0
          AND coalesce(closed_until < now() - interval '1 minute', true)
          AND coalesce(read_at < now() - interval '{READING_SECONDS:g} seconds', true)
          AND {STILL_LEADER}
        FOR UPDATE SKIP LOCKED)
"""


class QuotaPacers(RoleQueries):
    def __init__(
        self,
        engine: Engine,
        leader: Leader,
        types: Mapping[str, JobType],
        declared: Mapping[str, Mapping[Any, float]] | None = None,
    ) -> None:
        super().__init__(engine, leader)
        self._dependencies = sorted({one.dependency for one in types.values() if one.dependency})
        #: Limits to begin with, by dependency and kind.
        self._declared = {**(declared or {})}
        for name in self._declared.keys() - set(self._dependencies):
            logger.warning("FAIRLINE_QUOTAS: no job type depends on %s", name)
            del self._declared[name]
        #: Those of them that are not written in this term, and when to try again.
        self._undeclared: dict[str, Mapping[Any, float]] = {}
        self._declare_due = 0.0
        self._epoch: int | None = None
        self._pacers: dict[str, QuotaPacer] = {}
        #: Dependencies that the last call of :meth:`allowances` limited.
        self.limited: frozenset[str] = frozenset()
        self._now = 0.0
        self._read_due = self._forget_due = 0.0

    def allowances(self, now: float) -> dict[str, int]:
        """Jobs that may be dispatched to each dependency with a quota; 0 for a closed one."""
        self._now = now
        if self._leader.epoch != self._epoch:
            self._begin()
        if self._undeclared and not 0.0 < self._declare_due - now <= DECLARE_SECONDS:
            self._declare_due = now + DECLARE_SECONDS
            self._declare()
        if not 0.0 < self._read_due - now <= READ_SECONDS:
            self._refresh(now)
            self._read_due = now + READ_SECONDS
        if not 0.0 < self._forget_due - now <= FORGET_SECONDS:
            self._write(FORGET)
            self._forget_due = now + FORGET_SECONDS
        allowed = {name: pacer.allowance(now) for name, pacer in self._pacers.items()}
        limited = {name: jobs for name, jobs in allowed.items() if jobs is not None}
        self.limited = frozenset(limited)
        return limited

    def spend(self, dependency: str, jobs: int) -> None:
        """So many jobs of the dependency were dispatched; negative if they could not be sent."""
        if pacer := self._pacers.get(dependency):
            pacer.spend(jobs, self._now)

    def _begin(self) -> None:
        """A new term: another scheduler may have spent what this one thought was left."""
        self._pacers.clear()
        self._read_due = self._forget_due = self._declare_due = 0.0
        self._undeclared = dict(sorted(self._declared.items()))
        self._epoch = self._leader.epoch

    def _declare(self) -> None:
        """Write the limits to begin with; a row that somebody has locked is left for later."""
        for dependency, limits in list(self._undeclared.items()):
            values = {kind: limits.get(f"{kind}_per_minute") for kind in DECLARED}
            try:
                self._write(DECLARE_FIRST, dependency=dependency, **values)
            except StatementTooSlow as error:
                logger.warning("the quota of %s is not declared yet: %s", dependency, error)
            else:
                del self._undeclared[dependency]

    def _refresh(self, now: float) -> None:
        rows = self._read(PREPARED, dependencies=self._dependencies)
        for name in self._pacers.keys() - {row.dependency for row in rows}:
            del self._pacers[name]
        for row in rows:
            pacer = self._pacers.setdefault(row.dependency, QuotaPacer())
            pacer.report_usage(row.calls, row.tokens_in, row.tokens_out)
            was_closed = pacer.closed(now)
            pacer.update(quota_of(row, row.dispatched), now)
            if pacer.closed(now) and not was_closed:
                logger.warning(
                    "%s rejected a call because of its quota: not called for %.1f s",
                    row.dependency,
                    row.closed_seconds,
                )
