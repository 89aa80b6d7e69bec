"""Settle: the end of a run is written, if the lease still holds.

One statement for a group of endings, the projections of the job types included, so that
a job is never succeeded without its score on the leaderboard, nor the other way round.
A row that does not match is left alone: its lease was lost, and somebody else's result
stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from sqlalchemy import Engine

from models.session import connection
from tasks.registry import JobType
from tasks.runtime.claim import JobRef
from tasks.runtime.outcome import Ending

#: Status as text: see CLAIM.
SETTLE = """
    UPDATE jobs AS job
    SET status = ending.status,
        attempt = job.attempt + ending.tries_spent,
        deferrals = job.deferrals + ending.deferrals,
        execute_at = CASE ending.status WHEN 'scheduled'
            THEN now() + make_interval(secs => ending.delay_seconds) ELSE job.execute_at END,
        started_at = now() - make_interval(secs => ending.run_seconds),
        finished_at = CASE WHEN ending.status IN ('scheduled', 'queued') THEN NULL ELSE now() END,
        lease_expires_at = NULL,
        result = ending.result::json,
        error_class = ending.error_class,
        error_message = ending.error_message
    FROM unnest(
        %(ids)s::uuid[], %(leases)s::int[], %(statuses)s::job_status[], %(tries_spent)s::int[],
        %(deferrals)s::int[], %(delays)s::float8[], %(runs)s::float8[], %(results)s::text[],
        %(error_classes)s::text[], %(error_messages)s::text[]
    ) AS ending (id, lease, status, tries_spent, deferrals, delay_seconds, run_seconds,
                 result, error_class, error_message)
    WHERE job.id = ending.id AND job.lease = ending.lease AND job.status::text = 'running'
    RETURNING job.id, job.type, job.status, job.result
"""


@dataclass(frozen=True, slots=True)
class Settlement:
    """An ending on its way to the row."""

    ref: JobRef
    ending: Ending
    run_seconds: float


def settle_statement(types: Iterable[JobType]) -> str:
    """The settling statement with the projections of ``types`` built in."""
    projections = [job_type.project for job_type in types if job_type.project]
    parts = [f"settled AS ({SETTLE})"]
    parts += [f"projected_{number} AS ({sql})" for number, sql in enumerate(projections)]
    return f"WITH {', '.join(parts)} SELECT id::text FROM settled"


def settle_group(engine: Engine, statement: str, group: Sequence[Settlement]) -> list[bool]:
    """Write the endings; for each, whether it was still ours to write."""
    endings = [settlement.ending for settlement in group]
    with connection(engine) as taken:
        rows = taken.exec_driver_sql(
            statement,
            {
                "ids": [settlement.ref.id for settlement in group],
                "leases": [settlement.ref.lease for settlement in group],
                "statuses": [ending.status.value for ending in endings],
                "tries_spent": [ending.tries_spent for ending in endings],
                "deferrals": [ending.deferrals for ending in endings],
                "delays": [ending.delay_seconds for ending in endings],
                "runs": [settlement.run_seconds for settlement in group],
                "results": [ending.result for ending in endings],
                "error_classes": [ending.error_class for ending in endings],
                "error_messages": [ending.error_message for ending in endings],
            },
        ).all()
    written = {row[0] for row in rows}
    return [settlement.ref.id in written for settlement in group]
