"""Classifier: job types are measured, and move to the pool in which they belong.

The rule is :func:`app.policy.pool_choice.next_pool`; here it is fed with what workers counted.
Figures are computed afresh from the counts of the last hour each time, recent ones first
(half as much every fifteen minutes), and never added to what was written before: dying
between reading and writing, or doing it twice, changes nothing. A type that does not run
keeps its last figures.

A move concerns new jobs; those that wait stay where they are. Everybody is told (tenant 0),
as of quarantines: job types belong to the house.

Not guaranteed: that a count arrives. Two seconds of them die with a killed worker.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from sqlalchemy import Connection, Engine

from app.policy.pool_choice import CHAIN, Measured, PoolBounds, PoolMove, next_pool
from app.reads.durations import TypeRecord, TypeRuns, read_alive, read_runs, read_standings
from models.leadership import STILL_LEADER, Leader
from models.pools import POOLS
from models.store.session import connect
from tasks.registry import JobType

logger = logging.getLogger(__name__)

#: How often it looks.
CLASSIFY_SECONDS = 5.0
#: Digits of a second in the figures: noise below does not rewrite a row.
DIGITS = 6

#: Whoever declares a type anew is believed anew.
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


class Classifier:
    """Measures job types and moves them."""

    def __init__(
        self,
        engine: Engine,
        leader: Leader,
        types: Mapping[str, JobType],
        served_pools: Collection[str] = CHAIN,
    ) -> None:
        self._engine = engine
        self._leader = leader
        self._types = types
        self._served = [name for name in CHAIN if name in served_pools and name in POOLS]

    def run_once(self, now: float) -> int:
        """Write the figures of whatever ran lately, then judge; how many types moved."""
        with connect(self._engine) as connection:
            ran = {t: runs for t, runs in read_runs(connection).items() if t in self._types}
            if ran:
                self._write(connection, ran)
            served = places(self._served, read_alive(connection))
            moved = 0
            for name, standing in read_standings(connection).items():
                job_type = self._types.get(name)
                if job_type is None or job_type.pool != standing.declared:
                    continue  # nobody knows it, or as of its next run
                measured = measure(job_type, standing, ran.get(name, TypeRuns()))
                move = next_pool(measured, served)
                if move is not None:
                    moved += self._move(connection, name, measured, move)
        return moved

    def _write(self, connection: Connection, ran: Mapping[str, TypeRuns]) -> None:
        figures = {name: runs.histogram() for name, runs in ran.items()}
        connection.exec_driver_sql(
            WRITE_FIGURES,
            {
                "types": list(ran),
                "declared": [self._types[name].pool for name in ran],
                "means": [rounded(figures[name].mean_seconds) for name in ran],
                "p95s": [rounded(figures[name].quantile(0.95)) for name in ran],
                "runs": [runs.total for runs in ran.values()],
                "epoch": self._leader.epoch,
            },
        )

    def _move(self, connection: Connection, name: str, measured: Measured, move: PoolMove) -> int:
        written = connection.exec_driver_sql(
            MOVE,
            {
                "type": name,
                "declared": measured.declared,
                "before": measured.pool,
                "after": move.pool,
                "p95": rounded(measured.p95_seconds),
                "reason": move.reason.value,
                "epoch": self._leader.epoch,
            },
        ).rowcount
        if written:
            logger.warning(
                "%s moves from %s to %s: %s, p95 %s s, %d of %d runs were too long",
                name,
                measured.pool,
                move.pool,
                move.reason,
                rounded(measured.p95_seconds),
                measured.violations,
                measured.runs_here,
            )
        return written


def measure(job_type: JobType, standing: TypeRecord, runs: TypeRuns) -> Measured:
    """The type as the rule wants to see it."""
    runs_here, violations = runs.by_pool.get(standing.pool, (0, 0))
    return Measured(
        standing.declared,
        standing.pool,
        job_type.timeout_seconds,
        runs.histogram().quantile(0.95),
        runs.total,
        runs_here,
        violations,
        standing.moved_seconds,
    )


def places(served: Collection[str], alive: Collection[str]) -> dict[str, PoolBounds]:
    """The pools of this deployment as the rule wants to see them."""
    return {
        name: PoolBounds(
            bound_seconds=POOLS[name].bound_seconds,
            most_seconds=POOLS[name].most_seconds,
            progress_seconds=POOLS[name].progress_seconds,
            green=POOLS[name].concurrency == "gevent",
            alive=name in alive,
        )
        for name in served
    }


def rounded(seconds: float | None) -> float | None:
    """As it is written."""
    return None if seconds is None else round(seconds, DIGITS)
