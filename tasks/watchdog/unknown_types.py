"""Put off the jobs of a Celery message whose task this worker does not know.

Celery drops a message whose task it does not know. Left alone, the row would come back to the
head of its line with every lease, and a few of them would fill the window of their pool. So it
is claimed and put off for a while: a worker with the right modules may have it then.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import make_url

from models.jobs.claim import JobRef
from models.jobs.release import CLAIM_UNKNOWN, PUT_OFF_UNKNOWN
from models.store.errors import StateStoreUnavailable
from tasks.watchdog.emergency_write import connect_arguments, write_now

logger = logging.getLogger(__name__)


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
        write_now(
            connect_arguments(make_url(database_url)),
            [(CLAIM_UNKNOWN, parameters), (PUT_OFF_UNKNOWN, parameters)],
        )
    except StateStoreUnavailable as error:
        logger.warning("they wait for their leases to run out: %s", error)
