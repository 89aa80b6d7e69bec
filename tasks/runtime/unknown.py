"""Jobs of a type that no worker here has: the row says so, instead of waiting without a word."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from sqlalchemy import make_url

from models.errors import StateStoreUnavailable
from tasks.runtime.claim import JobRef
from tasks.runtime.last_word import connect_arguments, say

logger = logging.getLogger(__name__)

#: How long to try: it is a courtesy, and the worker has other things to do.
SECONDS = 1.0

NAME_UNKNOWN = """
    UPDATE jobs AS job SET error_class = 'DEPENDENCY', error_message = %(message)s
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[]) AS ref (id, lease)
    WHERE job.id = ref.id AND job.lease = ref.lease AND job.status::text = 'dispatched'
"""


def name_unknown(database_url: str, name: str, refs: Sequence[JobRef]) -> None:
    """Leave a word in the rows of a message that this worker cannot run."""
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
        say(connect_arguments(make_url(database_url)), [(NAME_UNKNOWN, parameters)], SECONDS)
    except StateStoreUnavailable as error:
        logger.debug("could not be said in the row: %s", error)
