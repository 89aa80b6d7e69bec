"""Release: dispatched or running → queued (or scheduled), with no attempt spent.

For messages that could not be sent (``release``), for claims on their way in a process that its
watchdog is about to kill (``HAND_BACK``) and for jobs of a type that the worker does not know
(``PUT_OFF_UNKNOWN``). Each is one statement on rows under their lease; a late message or claim
then finds nothing. Dying before it leaves the rows to the reaper.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine

from models.jobs.claim import OF_REFS, OF_WORKER, JobRef, ref_arrays
from models.jobs.dispatch import Dispatch
from models.store.session import execute

#: A message that was never sent: back to its place in the queue.
#: Status as text: see CLAIM in claim.py.
RELEASE = f"""
    UPDATE jobs AS job
    SET status = 'queued', lease_expires_at = NULL
    {OF_REFS} AND job.status::text = 'dispatched'
"""
#: Claims on their way in a process that is about to be killed: either the claim commits first, and
#: this statement waits for the row and finds it running; or the claim finds the job queued and
#: takes nothing. No run has begun.
HAND_BACK = f"""
    UPDATE jobs AS job
    SET status = CASE WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled'::job_status
                      ELSE 'queued'::job_status END,
        finished_at = CASE WHEN job.cancel_requested_at IS NOT NULL
                           THEN greatest(now(), job.cancel_requested_at) END,
        lease_expires_at = NULL
    {OF_REFS}
      AND (job.status::text = 'running' AND job.worker = %(worker)s
           OR job.status::text = 'dispatched')
"""
#: How long jobs of a type that the worker does not know are put off.
PUT_OFF_SECONDS = 30

#: Two moves, as the table of states has it; dying in between costs a crash, like any claim.
CLAIM_UNKNOWN = f"""
    UPDATE jobs AS job
    SET status = 'running', started_at = now(), worker = %(worker)s,
        lease_expires_at = now() + interval '10 seconds'
    {OF_REFS} AND job.status::text = 'dispatched'
"""
PUT_OFF_UNKNOWN = f"""
    UPDATE jobs AS job
    SET status = CASE WHEN job.cancel_requested_at IS NULL THEN 'scheduled'::job_status
                      ELSE 'cancelled'::job_status END,
        finished_at = CASE WHEN job.cancel_requested_at IS NOT NULL
                           THEN greatest(now(), job.cancel_requested_at) END,
        execute_at = now() + interval '{PUT_OFF_SECONDS} seconds',
        deferrals = job.deferrals + 1, lease_expires_at = NULL,
        error_class = 'DEPENDENCY', error_message = %(message)s
    {OF_WORKER}
"""


def release(engine: Engine, dispatches: Sequence[Dispatch]) -> None:
    """Put jobs back whose message could not be sent; a late message will not match."""
    # In the order of a claim: some of them may have been delivered all the same.
    ordered = sorted(JobRef(job.id, job.lease) for job in dispatches)
    execute(engine, RELEASE, ref_arrays(ordered))
