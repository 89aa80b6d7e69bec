"""Overdue: the parent of prefork children kills one that is far beyond its time limit.

Celery does the killing. It only comes to that if native code holds the interpreter lock, so
that nothing in the child gets to run: neither its heartbeats, nor its timer, nor its watchdog.
The parent then settles the run under its lease as what it was. If it cannot, the lease runs
out and the reaper finds a lost worker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from random import Random

from sqlalchemy import make_url

from models.errors import StateStoreUnavailable
from models.states import FailureClass
from tasks.registry import JobType
from tasks.retry import Standing
from tasks.runtime.claim import Claim, JobRef
from tasks.runtime.closing import close_run
from tasks.runtime.last_word import connect_arguments, say
from tasks.runtime.outcome import Failed, HandedBack
from tasks.runtime.settle import Settlement, settle_statement, settled
from tasks.runtime.tallies import ADD, Tallies, added
from tasks.runtime.tally import count_run

logger = logging.getLogger(__name__)

#: What a child gets beyond the limits of its run: for the claim, the watchdog and its last word.
MARGIN_SECONDS = 15.0

#: The child is known to be gone: nobody has to wait until its lease runs out.
EXPIRE = """
    UPDATE jobs AS job SET lease_expires_at = now()
    FROM unnest(%(ids)s::uuid[], %(leases)s::int[]) AS ref (id, lease)
    WHERE job.id = ref.id AND job.lease = ref.lease AND job.status::text = 'running'
"""
READ_RUNS = """
    SELECT extract(epoch FROM now() - job.started_at)::float8,
           job.id::text, job.lease, job.tenant_id, job.type, job.pool, job.attempt,
           job.deferrals, job.crashes, job.replays, job.traceparent, job.created_at,
           NULL, NULL
    FROM jobs AS job
    JOIN unnest(%(ids)s::uuid[], %(leases)s::int[]) AS ref (id, lease)
      ON job.id = ref.id AND job.lease = ref.lease
    WHERE job.status::text = 'running'
"""


def hard_limit_seconds(job_type: JobType, runs: int) -> float:
    """When the parent kills a child that runs a message of this type, with so many runs."""
    return job_type.timeout_seconds * runs + MARGIN_SECONDS


def expire_lost(database_url: str, refs: Sequence[JobRef]) -> None:
    """Let the reaper judge the runs of a child that died, now instead of a lease later."""
    ids = {"ids": [ref.id for ref in refs], "leases": [ref.lease for ref in refs]}
    try:
        say(connect_arguments(make_url(database_url)), [(EXPIRE, ids)])
    except StateStoreUnavailable as error:
        logger.warning("a lost run waits for its lease to run out: %s", error)


def settle_overdue(database_url: str, types: Mapping[str, JobType], refs: Sequence[JobRef]) -> int:
    """Settle the runs of a message whose child is being killed; how many there were."""
    arguments = connect_arguments(make_url(database_url))
    ids = {"ids": [ref.id for ref in refs], "leases": [ref.lease for ref in refs]}
    settlements, tallies = [], Tallies()
    try:
        [rows] = say(arguments, [(READ_RUNS, ids)])
        for ran_seconds, job_id, lease, *row in rows:
            claim = Claim(JobRef(job_id, lease), *row)
            job_type = types.get(claim.type)
            limit = job_type.timeout_seconds if job_type else 0.0
            # Celery's clock started with the message: the claim may have waited for the store.
            why = (
                Failed(FailureClass.TIMEOUT, f"The run took longer than {limit:g} s, natively.")
                if ran_seconds > limit
                else HandedBack()
            )
            outcome, ending = close_run(claim, why, job_type, Standing(), Random())
            count_run(tallies, claim, job_type, outcome, ending, ran_seconds)
            settlements.append(Settlement(claim.ref, ending, ran_seconds))
        if settlements:
            statement = settle_statement(types.values())
            counts = added(tallies.take().items())
            say(arguments, [(statement, settled(settlements)), (ADD, counts)])
    except StateStoreUnavailable as error:
        logger.warning("could not settle what was killed: %s", error)
        return 0
    return len(settlements)
