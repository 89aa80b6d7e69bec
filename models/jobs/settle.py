"""Settle: running → succeeded, dead, cancelled, scheduled (retry) or queued, under the lease.

Called by a worker, its watchdog, or the parent of a killed prefork child. Dying before the commit
loses the result, and the job is reaped and run again; dying after it brings the message back, which
then finds an ended row.

One statement for a group of endings, with the record of failed runs, what runs logged, the tenant's
usage and the projections of the job types, so that a job is never succeeded without its score on
the leaderboard and its price on the bill, nor the other way round. A row that does not match is
left alone: its lease was lost, and another run's result stands.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cache, lru_cache
from typing import Any, NamedTuple

from sqlalchemy import Engine

from models.encryption.key_ring import ContentKind, Place
from models.encryption.values import encrypt_json_if_any, encrypt_text, key_ring
from models.jobs.claim import JobRef, ref_arrays
from models.jobs.run_logs import WRITE, Logged, logged_arrays
from models.jobs.states import FailureClass, JobStatus
from models.store.arrays import plain_array, text_array
from models.store.prepared import MOST_PREPARED, PreparedStatement
from models.store.session import connect, transaction

#: A job whose cancellation was requested ends as cancelled, unless it succeeded first.
FINAL = """CASE WHEN job.cancel_requested_at IS NOT NULL AND ending.status <> 'succeeded'
            THEN 'cancelled'::job_status ELSE ending.status END"""

#: Status as text: see CLAIM in claim.py.
SETTLE = f"""
    UPDATE jobs AS job
    SET status = {FINAL},
        attempt = job.attempt + ending.tries_spent,
        deferrals = job.deferrals + ending.deferrals,
        execute_at = CASE ending.status WHEN 'scheduled'
            THEN now() + make_interval(secs => ending.delay_seconds) ELSE job.execute_at END,
        started_at = now() - make_interval(secs => ending.run_seconds),
        finished_at = CASE WHEN {FINAL} NOT IN ('scheduled', 'queued')
                           THEN greatest(now(), job.cancel_requested_at) END,
        lease_expires_at = NULL,
        slot_seconds = job.slot_seconds + ending.run_seconds,
        progress = coalesce(ending.progress::json, job.progress),
        result = ending.result::json,
        error_class = CASE ending.status WHEN 'queued' THEN job.error_class
                                         ELSE ending.error_class END,
        error_message = CASE ending.status WHEN 'queued' THEN job.error_message
                                           ELSE ending.error_message END
    FROM unnest(
        %(ids)s::uuid[], %(leases)s::int[], %(statuses)s::job_status[], %(tries_spent)s::int[],
        %(deferrals)s::int[], %(delays)s::float8[], %(runs)s::float8[], %(results)s::text[],
        %(error_classes)s::text[], %(error_messages)s::text[], %(progress)s::text[],
        %(tokens_in)s::bigint[], %(tokens_out)s::bigint[], %(readable_results)s::text[]
    ) AS ending (id, lease, status, tries_spent, deferrals, delay_seconds, run_seconds,
                 result, error_class, error_message, progress, tokens_in, tokens_out, readable)
    WHERE job.id = ending.id AND job.lease = ending.lease AND job.status::text = 'running'
      AND job.worker = %(worker)s::text
    RETURNING job.id, job.lease, job.type, job.status, job.tenant_id, job.pool,
              CASE WHEN ending.readable IS NULL THEN job.result
                   ELSE ending.readable::json END AS result,
              job.result AS stored_result, ending.readable IS NOT NULL AS encrypted,
              job.worker, job.started_at, ending.error_class, ending.error_message,
              ending.run_seconds, ending.tokens_in, ending.tokens_out, job.slice,
              job.status <> 'queued' AND
                  (ending.status NOT IN ('queued', 'cancelled') OR ending.run_seconds > 0)
                  AS run_ended
"""
#: Runs without a result stay on record. A claim that was released or cancelled before its function
#: was called is no run.
ATTEMPTED = """
    INSERT INTO attempts (job_id, lease, worker, started_at, status, error_class, error_message)
    SELECT id, lease, worker, started_at, status, error_class, error_message FROM settled
    WHERE run_ended AND status <> 'succeeded'
    ON CONFLICT DO NOTHING
"""
#: The tenant pays in the same statement, for what ended and for what goes on elsewhere, which is
#: not counted as a run yet. Sharded, see `Usage`; in the order of the keys, so that two groups
#: cannot deadlock.
CHARGED = """
    INSERT INTO usage AS used
        (tenant_id, pool, day, shard, jobs, runs, slot_seconds, slice_seconds, tokens_in,
         tokens_out)
    SELECT tenant_id, pool, current_date, pg_backend_pid() %% 16,
           count(*) FILTER (WHERE run_ended AND status NOT IN ('scheduled', 'queued')),
           count(*) FILTER (WHERE run_ended), sum(run_seconds),
           coalesce(sum(run_seconds) FILTER (WHERE slice <> ''), 0), sum(tokens_in),
           sum(tokens_out)
    FROM settled WHERE run_ended OR run_seconds > 0
    GROUP BY tenant_id, pool ORDER BY tenant_id, pool
    ON CONFLICT (tenant_id, day, pool, shard) DO UPDATE
    SET jobs = used.jobs + excluded.jobs, runs = used.runs + excluded.runs,
        slot_seconds = used.slot_seconds + excluded.slot_seconds,
        slice_seconds = used.slice_seconds + excluded.slice_seconds,
        tokens_in = used.tokens_in + excluded.tokens_in,
        tokens_out = used.tokens_out + excluded.tokens_out
"""


#: The end of a settling statement.
WRITTEN = " SELECT id::text AS id, lease FROM settled"


class Ending(NamedTuple):
    """What the row becomes."""

    status: JobStatus
    #: Attempts to add to the count.
    tries_spent: int = 0
    #: Deferrals to add to the count.
    deferrals: int = 0
    #: Seconds until a scheduled job is due again.
    delay_seconds: float = 0.0
    #: JSON text.
    result: str | None = None
    error_class: FailureClass | None = None
    error_message: str | None = None


class Settlement(NamedTuple):
    """An ending on its way to the row."""

    ref: JobRef
    ending: Ending
    run_seconds: float
    #: Progress as the job last reported it, JSON text.
    progress: str | None = None
    tokens_in: int = 0
    tokens_out: int = 0
    #: None if it logged nothing and raised nothing.
    logged: Logged | None = None
    #: Whose job it is: what is written is encrypted with that tenant's key.
    tenant_id: int | None = None


def settle_statement(projections: Iterable[str]) -> str:
    """The settling statement with the projections of job types built in, SQL that reads
    ``settled``: there ``result`` is readable, and ``stored_result`` is as the row has it."""
    parts = [f"settled AS ({SETTLE})", f"attempted AS ({ATTEMPTED})", f"charged AS ({CHARGED})"]
    parts += [f"projected_{number} AS ({sql})" for number, sql in enumerate(projections)]
    return f"WITH {', '.join(parts)}{WRITTEN}"


@cache
def with_logs(statement: str) -> str:
    """A settling statement that writes what runs logged, too.

    Apart, because most groups have no such run, and the part costs a statement 4 percent.
    """
    logged = WRITE.format(held="settled")
    return f"{statement.removesuffix(WRITTEN)}, logged AS ({logged}){WRITTEN}"


#: Without any projection.
PLAIN = settle_statement(())


@lru_cache(MOST_PREPARED)
def prepared(statement: str) -> PreparedStatement:
    """A settling statement, to be planned once per connection."""
    return PreparedStatement("settle", statement)


def settle_group(
    engine: Engine, statement: str, worker: str, group: Sequence[Settlement]
) -> list[bool]:
    """Write the endings; for each, whether it was still ours to write."""
    projects = statement != PLAIN
    if any(settlement.logged is not None for settlement in group):
        statement = with_logs(statement)
    with connect(engine) as connection:
        parameters = settled(worker, group, readable=projects)
        rows = prepared(statement).execute(connection, parameters).all()
    # By lease too: a run that lost the job and its successor may meet in one group.
    written = {JobRef(row.id, row.lease) for row in rows}
    return [settlement.ref in written for settlement in group]


def explain_settling(engine: Engine, statement: str) -> None:
    """Let PostgreSQL check a settling statement, its names and privileges, without running it.

    A table that is locked, say by a migration, is not waited for.
    """
    with transaction(engine) as connection:
        connection.exec_driver_sql("SET LOCAL lock_timeout = '200ms'")
        connection.exec_driver_sql(f"EXPLAIN {statement}", settled("", ()))


def settled(worker: str, group: Sequence[Settlement], *, readable: bool = False) -> dict[str, Any]:
    """The parameters of the settling statement, for runs of ``worker``; ``readable``: projections
    are to read results that are stored encrypted.

    In one order: a watchdog that ends a run may meet the worker itself, and rows locked the
    other way round would make each wait for the other.
    """
    group = sorted(group, key=lambda settlement: settlement.ref)
    endings = [settlement.ending for settlement in group]
    return {
        **ref_arrays(settlement.ref for settlement in group),
        "worker": worker,
        "statuses": plain_array([ending.status.value for ending in endings]),
        "tries_spent": plain_array([ending.tries_spent for ending in endings]),
        "deferrals": plain_array([ending.deferrals for ending in endings]),
        "delays": plain_array([ending.delay_seconds for ending in endings]),
        "runs": plain_array([settlement.run_seconds for settlement in group]),
        **results_of(group, readable),
        "error_classes": text_array([ending.error_class for ending in endings]),
        "error_messages": text_array([stored_error(settlement) for settlement in group]),
        "progress": text_array([settlement.progress for settlement in group]),
        "tokens_in": plain_array([settlement.tokens_in for settlement in group]),
        "tokens_out": plain_array([settlement.tokens_out for settlement in group]),
        **logged_arrays([(one.ref, one.logged) for one in group if one.logged is not None]),
    }


def results_of(group: Sequence[Settlement], readable: bool) -> dict[str, str]:
    """The results as they are stored, and for projections as they are, if that is not the same."""
    results = [settlement.ending.result for settlement in group]
    if key_ring() is None:
        return {"results": text_array(results), "readable_results": nulls(len(group))}
    stored = [encrypt_json_if_any(one.ending.result, place_of(one)) for one in group]
    shown = text_array(results) if readable else nulls(len(group))
    return {"results": text_array(stored), "readable_results": shown}


def stored_error(settlement: Settlement) -> str | None:
    """Its message as it is stored: it may repeat a part of the payload."""
    message = settlement.ending.error_message
    if message is None or key_ring() is None:
        return message
    return encrypt_text(message, place_of(settlement, ContentKind.ERROR))


def place_of(settlement: Settlement, kind: ContentKind = ContentKind.RESULT) -> Place:
    if settlement.tenant_id is None:
        raise ValueError(f"the tenant of job {settlement.ref.id} is not known")
    return Place(settlement.tenant_id, settlement.ref.id, kind)


def nulls(count: int) -> str:
    return text_array([None] * count)
