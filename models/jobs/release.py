"""Release: dispatched or running → queued (or scheduled), with no try spent.

For messages that could not be sent (``release``), for claims of a process that its watchdog is
about to kill (``HAND_BACK``) and for jobs of a type that the worker does not know
(``PUT_OFF_UNKNOWN``). Each is one statement on rows under their lease; a late message or claim
then finds nothing. Whoever dies before it leaves the rows to the reaper.
"""

from __future__ import annotations

from collections.abc import Sequence

from sqlalchemy import Engine

from models.jobs.dispatch import Dispatch
from models.store.arrays import plain_array
from models.store.session import connect

#: A message that was never sent: back to its place in the line, nothing spent.
#: Status as text: see CLAIM.
RELEASE = """
    UPDATE jobs AS job
    SET status = 'queued', lease_expires_at = NULL
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[]) AS ref (id, lease)
    WHERE job.id = ref.id AND job.lease = ref.lease AND job.status::text = 'dispatched'
"""
#: Innocent neighbours of a run that does not end. A claimed one counts a deferral, so that its
#: next run is not taken for the first. One that is still dispatched has a claim on its way: either
#: the claim commits first, and this statement waits for the row and finds it running; or the
#: claim finds the job queued and takes nothing.
HAND_BACK = """
    UPDATE jobs AS job
    SET status = CASE WHEN job.cancel_requested_at IS NOT NULL THEN 'cancelled'::job_status
                      ELSE 'queued'::job_status END,
        finished_at = CASE WHEN job.cancel_requested_at IS NOT NULL THEN now() END,
        lease_expires_at = NULL,
        deferrals = job.deferrals + (job.status::text = 'running')::int
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[]) AS held (id, lease)
    WHERE job.id = held.id AND job.lease = held.lease
      AND (job.status::text = 'running' AND job.worker = %(worker)s
           OR job.status::text = 'dispatched')
"""
#: How long jobs of a type that the worker does not know are put off.
PUT_OFF_SECONDS = 30

#: Two moves, as the table of states has it; dying in between costs a crash, like any claim.
CLAIM_UNKNOWN = """
    UPDATE jobs AS job
    SET status = 'running', started_at = now(), worker = 'nobody',
        lease_expires_at = now() + interval '10 seconds'
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[]) AS ref (id, lease)
    WHERE job.id = ref.id AND job.lease = ref.lease AND job.status::text = 'dispatched'
"""
PUT_OFF_UNKNOWN = f"""
    UPDATE jobs AS job
    SET status = CASE WHEN job.cancel_requested_at IS NULL THEN 'scheduled'::job_status
                      ELSE 'cancelled'::job_status END,
        finished_at = CASE WHEN job.cancel_requested_at IS NOT NULL THEN now() END,
        execute_at = now() + interval '{PUT_OFF_SECONDS} seconds',
        deferrals = job.deferrals + 1, lease_expires_at = NULL,
        error_class = 'DEPENDENCY', error_message = %(message)s
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[]) AS ref (id, lease)
    WHERE job.id = ref.id AND job.lease = ref.lease AND job.status::text = 'running'
      AND job.worker = 'nobody'
"""


def release(engine: Engine, dispatches: Sequence[Dispatch]) -> None:
    """Put jobs back whose message could not be sent; a late message will not match."""
    # In the order of a claim: some of them may have been delivered all the same.
    ordered = sorted(dispatches)
    with connect(engine) as connection:
        connection.exec_driver_sql(
            RELEASE,
            {
                "ids": plain_array([dispatch.id for dispatch in ordered]),
                "leases": plain_array([dispatch.lease for dispatch in ordered]),
            },
        )
