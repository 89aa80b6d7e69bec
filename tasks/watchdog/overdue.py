"""What the parent of prefork children does when Celery kills one for its time limit.

Celery does the killing. It only comes to that if native code holds the interpreter lock, so
that nothing in the child gets to run: neither its heartbeats, nor its timer, nor its watchdog.
The parent then settles the run under its lease as what it was. If it cannot, the lease runs
out and the reaper finds a lost worker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from sqlalchemy import make_url

from models.jobs.claim import Claim, JobRef
from models.jobs.reap import EXPIRE_LEASES
from models.jobs.settle import Settlement, settle_statement, settled
from models.jobs.states import FailureClass
from models.store.errors import StateStoreUnavailable
from models.tallies import ADD, Tallies, added
from tasks.registry import JobType, projections_of
from tasks.retry import RetryStanding
from tasks.watchdog.emergency_write import connect_arguments, write_now
from tasks.worker.counts import count_run
from tasks.worker.decide import close_run
from tasks.worker.outcome import Failed, HandedBack

logger = logging.getLogger(__name__)

#: What a child gets beyond the limits of its run: for the claim, the watchdog and what it writes.
MARGIN_SECONDS = 15.0

READ_RUNS = """
    SELECT extract(epoch FROM now() - job.started_at)::float8 AS ran_seconds,
           job.id::text AS id, job.lease, job.tenant_id, job.type, job.pool, job.attempt,
           job.deferrals, job.crashes, job.replays, job.traceparent, job.created_at
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
        write_now(connect_arguments(make_url(database_url)), [(EXPIRE_LEASES, ids)])
    except StateStoreUnavailable as error:
        logger.warning("a lost run waits for its lease to run out: %s", error)


def claim_of(row: Any) -> Claim:
    """The claim that a killed child held; nobody asks for its payload any more."""
    return Claim(
        ref=JobRef(row.id, row.lease),
        tenant_id=row.tenant_id,
        type=row.type,
        pool=row.pool,
        attempt=row.attempt,
        deferrals=row.deferrals,
        crashes=row.crashes,
        replays=row.replays,
        traceparent=row.traceparent,
        created_at=row.created_at,
        payload=None,
        payload_blob=None,
    )


def settle_overdue(database_url: str, types: Mapping[str, JobType], refs: Sequence[JobRef]) -> int:
    """Settle the runs of a message whose child is being killed; how many there were."""
    arguments = connect_arguments(make_url(database_url))
    ids = {"ids": [ref.id for ref in refs], "leases": [ref.lease for ref in refs]}
    settlements, tallies = [], Tallies()
    try:
        [rows] = write_now(arguments, [(READ_RUNS, ids)])
        for row in rows:
            claim, ran_seconds = claim_of(row), row.ran_seconds
            job_type = types.get(claim.type)
            limit = job_type.timeout_seconds if job_type else 0.0
            # Celery's clock started with the message: the claim may have waited for the store.
            why = (
                Failed(FailureClass.TIMEOUT, f"The run took longer than {limit:g} s, natively.")
                if ran_seconds > limit
                else HandedBack()
            )
            outcome, ending = close_run(claim, why, job_type, RetryStanding(), Random())
            count_run(tallies, claim, job_type, outcome, ending, ran_seconds)
            settlements.append(Settlement(claim.ref, ending, ran_seconds))
        if settlements:
            statement = settle_statement(projections_of(types.values()))
            counts = added(tallies.take().items())
            write_now(arguments, [(statement, settled(settlements)), (ADD, counts)])
    except StateStoreUnavailable as error:
        logger.warning("could not settle what was killed: %s", error)
        return 0
    return len(settlements)
