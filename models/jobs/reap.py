"""Reap: dispatched or running → queued, scheduled, dead or cancelled, once they are lost.

Lost is a message whose lease ran out without a claim, and a run

* whose worker is silent, even before its lease ends, unless several workers are and none is heard:
  then something else is wrong, and nobody could run the job anyway;
* whose lease ran out, unless its worker is heard and could not renew the lease since. One that has
  renewed all it holds after the end of this lease does not hold it any more, and one that has
  renewed nothing for long (it is ``stuck``) is not waited for.

A worker without a row in ``processes``, or of the previous version (``renewed_at`` is null), has
only its leases. Called by the Reaper of the scheduler or the relief, which finds, judges and writes
in one transaction: dying before its commit changes nothing, and the rows it had locked are found
again. The tenant pays for lost runs in the same statement.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row

from models.jobs.claim import OF_REFS, VIOLATIONS, JobRef, ref_arrays
from models.jobs.heartbeat import HAS_CHECKPOINT, REPORTED_TOKENS, STILL_WAITS
from models.jobs.settle import CHARGED
from models.jobs.states import FailureClass, JobStatus
from models.leadership import STILL_LEADER
from models.pools import lease_interval_sql
from models.presence import FORKED

#: Rows judged in one transaction.
BATCH = 1000

#: A worker that is alive and has renewed no lease for so long is not waited for any more.
MOST_WAIT_SECONDS = 300.0

#: A worker in ``silent`` held its leases up to its last report, whenever they were renewed.
LAST_REPORT = "CASE WHEN holder.name = ANY (%(silent)s::text[]) THEN holder.heartbeat_at END"
#: It was given to its worker (`models.jobs.offer`) after that was heard for the last time, and its
#: run has reported nothing: a worker that is dead gets jobs until its silence is noticed. Excuses
#: a job once: see `tasks.retry.lost`.
GIVEN_SINCE = f"""(job.lease = 1 AND job.lost_claims = 0 AND job.started_at = job.created_at
               AND job.created_at > holder.heartbeat_at AND job.reported_lease IS DISTINCT FROM 1
               AND NOT {HAS_CHECKPOINT})"""
#: ``leased_seconds``: from the beginning to the end of the lease, or a lease's time after the last
#: report of a silent worker if that is later; null if there was no claim.
#: ``lost_seconds``: until the process was seen to end; not positive if that was another run's.
#: ``condition``: that of the role which reaps.
FIND_LOST_IF = f"""
    SELECT job.id::text AS id, job.lease, job.status::text AS status, job.type, job.pool,
           job.tenant_id, job.attempt, job.deferrals, job.crashes, job.worker,
           {VIOLATIONS} AS violations,
           job.cancel_requested_at IS NOT NULL AS cancelled,
           {STILL_WAITS} OR coalesce({GIVEN_SINCE}, false) AS waiting,
           extract(epoch FROM job.lost_at - job.started_at)::float8 AS lost_seconds,
           extract(epoch FROM greatest(
               job.lease_expires_at, {LAST_REPORT} + {lease_interval_sql("job.pool")}
           ) - job.started_at)::float8 AS leased_seconds
    FROM jobs AS job
    LEFT JOIN processes AS holder ON holder.name = job.worker AND job.status = 'running'
    WHERE job.status IN ('dispatched', 'running') AND {{condition}}
      AND CASE WHEN holder.renewed_at IS NULL THEN job.lease_expires_at < now()
               WHEN holder.name = ANY (%(silent)s::text[])
               THEN %(early)s OR job.lease_expires_at < now()
               ELSE job.lease_expires_at < now()
                    AND (holder.renewed_at > job.lease_expires_at
                         OR holder.name = ANY (%(stuck)s::text[])) END
    LIMIT {BATCH}
    FOR UPDATE OF job SKIP LOCKED
"""
FIND_LOST = FIND_LOST_IF.format(condition=STILL_LEADER)
#: The rows are locked by FIND_LOST; the lease is compared all the same.
REAP = f"""
    WITH settled AS (
        UPDATE jobs AS job
        SET status = verdict.status,
            attempt = job.attempt + verdict.tries_spent,
            crashes = job.crashes + verdict.crashed::int,
            lost_claims = job.lost_claims + verdict.lost_claim::int,
            slot_seconds = job.slot_seconds + verdict.run_seconds,
            execute_at = CASE verdict.status WHEN 'scheduled'
                THEN now() + make_interval(secs => verdict.delay_seconds) ELSE job.execute_at END,
            lease_expires_at = NULL,
            finished_at = CASE WHEN verdict.status IN ('dead', 'cancelled')
                               THEN greatest(now(), job.cancel_requested_at) END,
            error_class = coalesce(verdict.error_class, job.error_class),
            error_message = coalesce(verdict.error_message, job.error_message)
        FROM unnest(%(ids)s::uuid[], %(leases)s::int[], %(statuses)s::job_status[],
                    %(tries_spent)s::int[], %(crashed)s::bool[], %(lost_claims)s::bool[],
                    %(delays)s::float8[], %(error_classes)s::text[], %(error_messages)s::text[],
                    %(runs)s::float8[])
            AS verdict (id, lease, status, tries_spent, crashed, lost_claim, delay_seconds,
                        error_class, error_message, run_seconds)
        WHERE job.id = verdict.id AND job.lease = verdict.lease
        RETURNING job.id, job.lease, job.worker, job.started_at, job.status, job.tenant_id,
                  job.pool, job.slice, verdict.error_class, verdict.error_message,
                  verdict.run_seconds, {REPORTED_TOKENS},
                  verdict.error_class IS NOT NULL AS run_ended
    ), charged AS ({CHARGED})
    INSERT INTO attempts (job_id, lease, worker, started_at, status, error_class, error_message)
    SELECT id, lease, worker, started_at, status, error_class, error_message
    FROM settled WHERE run_ended
    ON CONFLICT DO NOTHING
"""
#: For a forked process that is known to be gone: its leases need not run out first, and its
#: presence does not hold the reaper back.
EXPIRE_LEASES = f"""
    WITH expired AS (
        UPDATE jobs AS job SET lease_expires_at = now(), lost_at = now()
        {OF_REFS} AND job.status::text = 'running' AND job.worker IN ({FORKED})
        RETURNING job.worker
    )
    DELETE FROM processes
    WHERE name IN (SELECT worker FROM expired)
"""
#: Queues with jobs that were dispatched so long ago and not claimed.
FIND_UNCLAIMED = """
    SELECT DISTINCT pool, slice FROM jobs
    WHERE status = 'dispatched' AND pool = ANY (%(pools)s::text[])
      AND dispatched_at < now() - make_interval(secs => %(seconds)s)
"""
#: Those of one queue, which is empty: their messages were lost.
EXPIRE_UNCLAIMED = f"""
    WITH unclaimed AS MATERIALIZED (
        SELECT id FROM jobs
        WHERE status = 'dispatched' AND pool = %(pool)s AND slice = %(slice)s
          AND dispatched_at < now() - make_interval(secs => %(seconds)s)
          AND lease_expires_at > now() AND {STILL_LEADER}
        FOR NO KEY UPDATE SKIP LOCKED
    )
    UPDATE jobs AS job SET lease_expires_at = now()
    FROM unclaimed WHERE job.id = unclaimed.id
"""


@dataclass(frozen=True, slots=True)
class Reaping:
    """What becomes of a lost message or run."""

    status: JobStatus
    tries_spent: int = 0
    crashed: bool = False
    delay_seconds: float = 0.0
    error_class: FailureClass | None = None
    error_message: str | None = None
    #: The claim was lost before its run was known to have begun.
    lost_claim: bool = False
    #: What the tenant pays for: see `tasks.retry.lost`.
    run_seconds: float = 0.0


def reap(connection: Connection, found: Sequence[Row[Any]], verdicts: Sequence[Reaping]) -> None:
    """Write what becomes of the rows that FIND_LOST locked."""
    parameters = {
        **ref_arrays(JobRef(lost.id, lost.lease) for lost in found),
        "statuses": [verdict.status.value for verdict in verdicts],
        "tries_spent": [verdict.tries_spent for verdict in verdicts],
        "crashed": [verdict.crashed for verdict in verdicts],
        "lost_claims": [verdict.lost_claim for verdict in verdicts],
        "runs": [verdict.run_seconds for verdict in verdicts],
        "delays": [verdict.delay_seconds for verdict in verdicts],
        "error_classes": [verdict.error_class for verdict in verdicts],
        "error_messages": [verdict.error_message for verdict in verdicts],
    }
    connection.exec_driver_sql(REAP, parameters)
