"""Jobs of a type that a worker does not have are put off, and their rows say why.

Celery drops a message whose task it does not know. Left alone, the row would come back to the
head of its line with every lease, and a few of them would fill the window of their pool. So it
is claimed and put off for a while: a worker with the right modules may have it then.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import make_url

from models.errors import StateStoreUnavailable
from tasks.runtime.claim import JobRef
from tasks.runtime.last_word import connect_arguments, say

logger = logging.getLogger(__name__)

#: How long they are put off.
PUT_OFF_SECONDS = 30

#: Two moves, as the table of states has it; dying in between costs a crash, like any claim.
CLAIM_UNKNOWN = """
    UPDATE jobs AS job
    SET status = 'running', started_at = now(), worker = 'nobody',
        lease_expires_at = now() + interval '10 seconds'
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[]) AS ref (id, lease)
    WHERE job.id = ref.id AND job.lease = ref.lease AND job.status::text = 'dispatched'
"""
PUT_OFF = f"""
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


def put_off_unknown(database_url: str, name: str, refs: Sequence[JobRef]) -> None:
    """Put off the jobs of a message that this worker cannot run."""
    message = (
        f"The worker that was to run it knows no job type {name!r}:"
        " is its module in FAIRLINE_JOB_MODULES?"
    )
    logger.error("%d jobs wait: %s", len(refs), message)
    parameters = {
        "message": message,
        "ids": [ref.id for ref in refs],
        "leases": [ref.lease for ref in refs],
    }
    try:
        say(
            connect_arguments(make_url(database_url)),
            [(CLAIM_UNKNOWN, parameters), (PUT_OFF, parameters)],
        )
    except StateStoreUnavailable as error:
        logger.warning("they wait for their leases to run out: %s", error)
