"""Heartbeat: running → running, with a later end of the lease, a begun run, progress or tokens.

Called by a worker every few seconds for all runs it holds, and by its watchdog while the worker
itself is blocked. Dying before the commit lets the leases run out; dying after it changes nothing
else. A row that somebody else has locked is skipped: its turn comes with the next heartbeat, and
the others are renewed meanwhile. A lease that is not among the answers was lost.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import NamedTuple

from sqlalchemy import Engine

from models.jobs.claim import OF_WORKER, JobRef, ref_arrays
from models.pools import lease_interval_sql
from models.store.session import fetch

#: Rows of the given jobs that nobody else has locked; locked by us from here on.
UNLOCKED = """unlocked AS MATERIALIZED (
        SELECT id FROM jobs WHERE id = ANY (%(ids)s::uuid[]) FOR NO KEY UPDATE SKIP LOCKED
    )"""
#: A lease is renewed after a third of it. By the clock that ends it, which may jump.
DUE = f"job.lease_expires_at < now() + {lease_interval_sql('job.pool')} * (2.0 / 3.0)"
#: Each lease that is still held, and whether it is renewed, if it was due; if not, its row is
#: locked. Status as text: see CLAIM in claim.py.
BEAT = f"""
    WITH due AS MATERIALIZED (
        SELECT job.id FROM jobs AS job WHERE job.id = ANY (%(ids)s::uuid[]) AND {DUE}
        FOR NO KEY UPDATE SKIP LOCKED
    ), renewed AS (
        UPDATE jobs AS job
        SET lease_expires_at = now() + {lease_interval_sql("job.pool")}
        {OF_WORKER} AND job.id IN (SELECT id FROM due)
        RETURNING job.id
    )
    SELECT job.id::text AS id, job.lease,
           NOT {DUE} OR job.id IN (SELECT id FROM renewed) AS renewed
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[]) AS ref (id, lease)
    JOIN jobs AS job ON job.id = ref.id AND job.lease = ref.lease
    WHERE job.status::text = 'running' AND job.worker = %(worker)s
"""
#: Runs of claims that had to wait.
NOTE_BEGUN = f"""
    WITH {UNLOCKED}
    UPDATE jobs AS job
    SET waiting_lease = NULL, started_at = now() - make_interval(secs => begun.ran_seconds)
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[], %(ran)s::float8[])
        AS begun (id, lease, ran_seconds)
    WHERE job.id = begun.id AND job.lease = begun.lease AND job.status::text = 'running'
      AND job.worker = %(worker)s AND job.id IN (SELECT id FROM unlocked)
    RETURNING job.id::text AS id, job.lease
"""
REPORT = f"""
    WITH {UNLOCKED}
    UPDATE jobs AS job
    SET progress = coalesce(report.progress::json, job.progress), reported_lease = job.lease,
        reported_tokens_in = report.tokens_in, reported_tokens_out = report.tokens_out
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[], %(progress)s::text[], %(tokens_in)s::bigint[],
                %(tokens_out)s::bigint[])
        AS report (id, lease, progress, tokens_in, tokens_out)
    WHERE job.id = report.id AND job.lease = report.lease AND job.status::text = 'running'
      AND job.worker = %(worker)s AND job.id IN (SELECT id FROM unlocked)
    RETURNING job.id::text AS id, job.lease
"""
#: The run of this lease has saved a checkpoint, so it has begun.
HAS_CHECKPOINT = """EXISTS (SELECT FROM checkpoints AS saved
               WHERE saved.job_id = job.id AND saved.lease = job.lease)"""
#: Whether the run of this lease is not known to have begun.
STILL_WAITS = f"""(job.waiting_lease IS NOT DISTINCT FROM job.lease AND NOT {HAS_CHECKPOINT})"""
#: Columns: what the current run has reported, for whoever ends it in its worker's place.
REPORTED_TOKENS = ", ".join(
    f"CASE WHEN job.reported_lease = job.lease THEN job.reported_{name} ELSE 0 END AS {name}"
    for name in ("tokens_in", "tokens_out")
)
#: By an index of the running jobs that are to stop, which is nearly always empty.
READ_CANCELLED = """
    SELECT id::text AS id, lease FROM jobs
    WHERE worker = %(worker)s AND status = 'running' AND cancel_requested_at IS NOT NULL
"""


class RunReport(NamedTuple):
    """What a run says of itself while it runs."""

    ref: JobRef
    #: JSON text; None if it reports none.
    progress: str | None
    #: Tokens that it has used so far.
    tokens_in: int = 0
    tokens_out: int = 0


def beat(engine: Engine, worker: str, held: Collection[JobRef]) -> dict[JobRef, bool]:
    """Renew the leases of ``held`` that are due; those that are still ours, and for each whether
    it is due no more."""
    if not held:
        return {}
    rows = fetch(engine, BEAT, {**ref_arrays(held), "worker": worker})
    return {JobRef(row.id, row.lease): row.renewed for row in rows}


def note_begun(engine: Engine, worker: str, begun: Sequence[tuple[JobRef, float]]) -> set[JobRef]:
    """Note that the runs of waiting claims have begun, so many seconds ago; those noted."""
    if not begun:
        return set()
    refs, ran = zip(*begun, strict=True)
    parameters = {**ref_arrays(refs), "worker": worker, "ran": list(ran)}
    return {JobRef(row.id, row.lease) for row in fetch(engine, NOTE_BEGUN, parameters)}


def report(engine: Engine, worker: str, reports: Sequence[RunReport]) -> set[JobRef]:
    """Write how far runs are and what they have used; whose was written."""
    if not reports:
        return set()
    refs, texts, tokens_in, tokens_out = map(list, zip(*reports, strict=True))
    parameters = {
        **ref_arrays(refs),
        "worker": worker,
        "progress": texts,
        "tokens_in": tokens_in,
        "tokens_out": tokens_out,
    }
    return {JobRef(row.id, row.lease) for row in fetch(engine, REPORT, parameters)}


def read_cancelled(engine: Engine, worker: str) -> set[JobRef]:
    """Runs of ``worker`` whose cancellation was requested."""
    rows = fetch(engine, READ_CANCELLED, {"worker": worker})
    return {JobRef(row.id, row.lease) for row in rows}
