"""Classifier: measures job types and moves them to the pool in which they belong.

The rule is :func:`app.policy.pool_choice.agreed_pool`. Figures are computed afresh from the counts
of the last hour and never added to what was written before: a crash, or doing it twice, changes
nothing. A type that does not run keeps its last figures. A move affects new jobs only. All tenants
get an event if a type moves, and, once an hour, if it stays although many of its runs are too long.
Not guaranteed: every count; two seconds of them are lost with a killed worker.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import Connection, Engine, Row

from app.policy.histogram import Bin, Histogram, decay, gather, less
from app.policy.pool_choice import (
    WINDOW_SECONDS,
    KeepReason,
    Measured,
    PoolBounds,
    PoolMove,
    agreed_pool,
    broken,
    kept_by,
    next_pool,
)
from app.scheduler.role import RoleQueries
from models.leadership import STILL_LEADER, Leader
from models.pools import CHAIN, POOLS
from models.presence import SERVING
from models.store.prepared import PreparedStatement
from models.store.session import connect
from models.tallies import MICROSECONDS, TallyKind, parse_run_name, parse_tenant_name
from tasks.registry import JobType

logger = logging.getLogger(__name__)

CLASSIFY_SECONDS = 5.0
#: Digits of a second in the figures: smaller changes do not rewrite a row.
DIGITS = 6

#: A bucket belongs to the window in which it begins: never anything from before a change.
READ_RUNS = f"""
    SELECT kind, name, extract(epoch FROM now() - bucket)::float8 AS age_seconds, total,
           amount AS microseconds
    FROM tallies
    WHERE kind = ANY (%(kinds)s::text[])
      AND bucket > now() - interval '{WINDOW_SECONDS:g} seconds'
"""
#: Seconds since it was moved: null if it never was.
READ_TYPES = PreparedStatement(
    "read_types",
    """
    SELECT type, declared_pool, pool,
           extract(epoch FROM now() - moved_at)::float8 AS moved_seconds
    FROM job_types
""",
)
#: Queues that live workers consume.
READ_ALIVE = PreparedStatement(
    "read_alive",
    f"SELECT DISTINCT unnest(pools) AS queue FROM processes WHERE {SERVING} AND slots > 0",
)
#: A type that is declared for another pool starts there.
WRITE_FIGURES = f"""
    INSERT INTO job_types AS known (type, declared_pool, pool, mean_seconds, p95_seconds, runs)
    SELECT type, declared, declared, mean, p95, runs
    FROM unnest(%(types)s::text[], %(declared)s::text[], %(means)s::float8[], %(p95s)s::float8[],
                %(runs)s::bigint[]) AS measured (type, declared, mean, p95, runs)
    WHERE {STILL_LEADER}
    ORDER BY type
    ON CONFLICT (type) DO UPDATE
    SET pool = CASE WHEN known.declared_pool = excluded.declared_pool THEN known.pool
                    ELSE excluded.declared_pool END,
        moved_at = CASE WHEN known.declared_pool = excluded.declared_pool THEN known.moved_at END,
        declared_pool = excluded.declared_pool, mean_seconds = excluded.mean_seconds,
        p95_seconds = excluded.p95_seconds, runs = excluded.runs, changed_at = now()
    WHERE (known.declared_pool, known.mean_seconds, known.p95_seconds, known.runs)
          IS DISTINCT FROM
          (excluded.declared_pool, excluded.mean_seconds, excluded.p95_seconds, excluded.runs)
"""
MOVE = f"""
    WITH moved AS (
        UPDATE job_types SET pool = %(after)s, moved_at = now(), changed_at = now()
        WHERE type = %(type)s AND declared_pool = %(declared)s AND pool = %(before)s
          AND {STILL_LEADER}
        RETURNING type
    )
    INSERT INTO events (tenant_id, kind, detail)
    SELECT 0, 'job_type_moved', json_build_object(
        'type', type, 'from', %(before)s::text, 'to', %(after)s::text,
        'p95_seconds', %(p95)s::float8, 'reason', %(reason)s::text)
    FROM moved
"""
#: At most once an hour for a type and reason, by whichever leader.
KEEP = f"""
    INSERT INTO events (tenant_id, kind, detail)
    SELECT 0, 'job_type_kept', json_build_object(
        'type', %(type)s::text, 'pool', %(pool)s::text, 'p95_seconds', %(p95)s::float8,
        'violations', %(violations)s::bigint, 'runs', %(runs)s::bigint, 'reason', %(reason)s::text)
    WHERE {STILL_LEADER} AND NOT EXISTS (
        SELECT FROM events
        WHERE tenant_id = 0 AND kind = 'job_type_kept' AND detail ->> 'type' = %(type)s::text
          AND detail ->> 'reason' = %(reason)s::text
          AND at > now() - interval '{WINDOW_SECONDS:g} seconds')
"""


@dataclass(slots=True)
class TypeRuns:
    """The runs of a type within the window."""

    #: Runs and violations by pool.
    by_pool: dict[str, tuple[int, int]] = field(default_factory=dict)
    bins: list[Bin] = field(default_factory=list)
    #: The parts of tenants that were counted apart.
    tenants: dict[int, TypeRuns] = field(default_factory=dict)

    @property
    def total(self) -> int:
        """All of them."""
        return sum(runs for runs, _ in self.by_pool.values())

    def histogram(self) -> Histogram:
        """Their durations, older ones counting less."""
        return gather(self.bins)

    def count(self, row: Row[Any], pool: str, number: int, over: bool) -> None:
        """Add a row of READ_RUNS."""
        before, violations = self.by_pool.get(pool, (0, 0))
        self.by_pool[pool] = (before + row.total, violations + row.total * over)
        weight = decay(row.age_seconds)
        self.bins.append((number, row.total * weight, row.microseconds / MICROSECONDS * weight))

    def without(self, tenant_id: int) -> TypeRuns:
        """All but those of the tenant."""
        own = self.tenants[tenant_id]
        by_pool = {}
        for pool, (runs, violations) in self.by_pool.items():
            own_runs, own_violations = own.by_pool.get(pool, (0, 0))
            left = max(0, runs - own_runs)
            by_pool[pool] = (left, min(left, max(0, violations - own_violations)))
        return TypeRuns(by_pool, [*self.bins, *less(own.bins)])


def read_runs(connection: Connection, *, apart: bool = False) -> dict[str, TypeRuns]:
    """What ran within the window, by type; ``apart``, with the parts of tenants."""
    # In one statement: a part that was read later than the whole would leave a rest.
    kinds = [TallyKind.RUN, TallyKind.TENANT_RUN] if apart else [TallyKind.RUN]
    found: dict[str, TypeRuns] = {}
    for row in connection.exec_driver_sql(READ_RUNS, {"kinds": kinds}):
        name, tenant_id = row.name, 0
        if row.kind == TallyKind.TENANT_RUN:
            name, tenant_id = parse_tenant_name(name)
        job_type, pool, number, over = parse_run_name(name)
        runs = found.setdefault(job_type, TypeRuns())
        if tenant_id:
            runs = runs.tenants.setdefault(tenant_id, TypeRuns())
        runs.count(row, pool, number, over)
    return found


class Classifier(RoleQueries):
    def __init__(
        self,
        engine: Engine,
        leader: Leader,
        types: Mapping[str, JobType],
        served_pools: Collection[str] = CHAIN,
    ) -> None:
        super().__init__(engine, leader)
        self._types = types
        #: Types that stay, why, and when that is told again.
        self._kept: dict[tuple[str, KeepReason], float] = {}
        self._served = [name for name in CHAIN if name in served_pools and name in POOLS]

    def run_once(self, now: float) -> int:
        """Write the figures of types that ran, then apply the rule; how many types moved."""
        with connect(self._engine) as connection:
            ran = {t: runs for t, runs in read_runs(connection).items() if t in self._types}
        if ran:
            self._write_figures(ran)
        served = bounds_of(self._served, {row.queue for row in self._read(READ_ALIVE)})
        moving = []
        for row in self._read(READ_TYPES):
            job_type = self._types.get(row.type)
            if job_type is None or job_type.pool != row.declared_pool:
                continue  # not registered here, or its declaration changes with its next run
            measured = measure(job_type, row, ran.get(row.type, TypeRuns()))
            if next_pool(measured, served, CHAIN):
                moving.append((job_type, row))
            elif reason := kept_by(measured, served, CHAIN):
                self._keep(row.type, measured, reason, now)
        return self._move_agreed(moving, served, now) if moving else 0

    def _move_agreed(
        self,
        moving: Sequence[tuple[JobType, Row[Any]]],
        served: Mapping[str, PoolBounds],
        now: float,
    ) -> int:
        """Move the types that would move without any one tenant, too; how many."""
        with connect(self._engine) as connection:
            ran = read_runs(connection, apart=True)
        moved = 0
        for job_type, row in moving:
            runs = ran.get(row.type, TypeRuns())
            measured = measure(job_type, row, runs)
            without = (measure(job_type, row, runs.without(one)) for one in runs.tenants)
            move = agreed_pool(measured, without, served, CHAIN)
            if move is not None:
                moved += self._move(row.type, measured, move)
            elif broken(measured):
                self._keep(row.type, measured, KeepReason.ONE_TENANT, now)
        return moved

    def _keep(self, name: str, measured: Measured, reason: KeepReason, now: float) -> None:
        """Tell that a type stays, and why; once an hour."""
        if now < self._kept.get((name, reason), -math.inf):
            return
        self._kept[name, reason] = now + WINDOW_SECONDS
        told = self._write(
            KEEP,
            type=name,
            pool=measured.pool,
            p95=rounded(measured.p95_seconds),
            violations=measured.violations,
            runs=measured.runs_here,
            reason=reason.value,
        )
        if told:
            logger.info(
                "%s stays in %s: %s, p95 %s s, %d of %d runs were too long",
                *(name, measured.pool, reason, rounded(measured.p95_seconds)),
                *(measured.violations, measured.runs_here),
            )

    def _write_figures(self, ran: Mapping[str, TypeRuns]) -> None:
        figures = {name: runs.histogram() for name, runs in ran.items()}
        self._write(
            WRITE_FIGURES,
            types=list(ran),
            declared=[self._types[name].pool for name in ran],
            means=[rounded(figures[name].mean_seconds) for name in ran],
            p95s=[rounded(figures[name].quantile(0.95)) for name in ran],
            runs=[runs.total for runs in ran.values()],
        )

    def _move(self, name: str, measured: Measured, move: PoolMove) -> int:
        p95 = rounded(measured.p95_seconds)
        written = self._write(
            MOVE,
            type=name,
            declared=measured.declared,
            before=measured.pool,
            after=move.pool,
            p95=p95,
            reason=move.reason.value,
        )
        if written:
            logger.warning(
                "%s moves from %s to %s: %s, p95 %s s, %d of %d runs were too long",
                *(name, measured.pool, move.pool, move.reason, p95),
                *(measured.violations, measured.runs_here),
            )
        return written


def measure(job_type: JobType, row: Row[Any], runs: TypeRuns) -> Measured:
    """The type as the rule needs it, by its row of READ_TYPES and its runs."""
    runs_here, violations = runs.by_pool.get(row.pool, (0, 0))
    return Measured(
        row.declared_pool,
        row.pool,
        job_type.timeout_seconds,
        runs.histogram().quantile(0.95),
        runs.total,
        runs_here,
        violations,
        row.moved_seconds,
    )


def bounds_of(served: Collection[str], alive: Collection[str]) -> dict[str, PoolBounds]:
    """The pools of this deployment as the rule needs them."""
    return {
        name: PoolBounds(
            bound_seconds=POOLS[name].bound_seconds,
            most_seconds=POOLS[name].most_seconds,
            checkpoint_seconds=POOLS[name].checkpoint_seconds,
            progress_seconds=POOLS[name].progress_seconds,
            green=POOLS[name].concurrency == "gevent",
            alive=name in alive,
        )
        for name in served
    }


def rounded(seconds: float | None) -> float | None:
    """With as many digits as are stored."""
    return None if seconds is None else round(seconds, DIGITS)
