"""What a worker's main process writes for jobs that no run of its can settle.

* Celery killed a prefork child at its hard time limit, because native code held the interpreter
  lock and neither its timer nor its watchdog could run: its runs are settled as timed out.
* A prefork child died otherwise: the reaper gets its runs now instead of a lease later.
* Celery dropped a message of an unknown task: the jobs are claimed and deferred, so that a worker
  with the right modules may get them. Left alone, they would fill the window of their pool.

If the write fails, the lease expires and the reaper finds a lost worker.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from random import Random
from typing import Any

from sqlalchemy import make_url

from models.jobs.claim import VIOLATIONS, Claim, JobRef
from models.jobs.heartbeat import REPORTED_TOKENS, STILL_WAITS
from models.jobs.reap import EXPIRE_LEASES
from models.jobs.release import CLAIM_UNKNOWN, PUT_OFF_UNKNOWN
from models.jobs.settle import Settlement, settle_statement, settled
from models.jobs.states import FailureClass
from models.presence import FORKED, LEAVE_WITHOUT_RUNS
from models.store.errors import StateStoreUnavailable
from models.tallies import ADD, COUNT_KILLS, added, recycled
from models.tenant_tallies import RunTallies
from tasks.registry import JobType
from tasks.retry.decision import GOOD_STANDING
from tasks.watchdog.emergency_write import connect_arguments, ref_parameters, write_now
from tasks.worker.decide import close_run, counts_of
from tasks.worker.outcome import Failed, HandedBack, Outcome, Released

logger = logging.getLogger(__name__)

#: What a child gets beyond the limits of its run: for the claim, the watchdog and what it writes.
MARGIN_SECONDS = 15.0

READ_RUNS = f"""
    SELECT extract(epoch FROM now() - job.started_at)::float8 AS ran_seconds, job.worker,
           job.id::text AS id, job.lease, job.tenant_id, job.type, job.pool, job.attempt,
           job.deferrals, job.crashes, job.replays, job.traceparent, job.created_at,
           {VIOLATIONS} AS violations, {STILL_WAITS} AS waiting, {REPORTED_TOKENS}
    FROM jobs AS job
    JOIN unnest(%(ids)s::uuid[], %(leases)s::int[]) AS ref (id, lease)
      ON job.id = ref.id AND job.lease = ref.lease
    WHERE job.status::text = 'running' AND job.worker IN ({FORKED})
"""


def hard_limit_seconds(job_type: JobType, runs: int) -> float:
    """When the parent kills a child that runs a message of this type, with so many runs."""
    return job_type.timeout_seconds * runs + MARGIN_SECONDS


def expire_lost(database_url: str, parent: str, refs: Sequence[JobRef]) -> None:
    """Let the reaper have the runs of a process that ``parent`` forked, and that is gone."""
    try:
        arguments = connect_arguments(make_url(database_url))
        write_now(arguments, [(EXPIRE_LEASES, ref_parameters(refs, parent=parent))])
    except StateStoreUnavailable as error:
        logger.warning("a lost run is reaped only when its lease expires: %s", error)


def claim_of(row: Any) -> Claim:
    """The claim that a killed child held, without its payload."""
    fields = {name: value for name, value in row._asdict().items() if name in Claim._fields}
    return Claim(JobRef(row.id, row.lease), payload=None, payload_blob=None, **fields)


def why_ended(ran_seconds: float, job_type: JobType | None) -> Outcome:
    """Celery's clock started with the message: the claim may have waited for the store."""
    limit = job_type.timeout_seconds if job_type else 0.0
    if ran_seconds > limit:
        return Failed(FailureClass.TIMEOUT, f"The run took longer than {limit:g} s, natively.")
    return HandedBack()


def settle_overdue(
    database_url: str, types: Mapping[str, JobType], parent: str, refs: Sequence[JobRef]
) -> int:
    """Settle the runs of a message whose process, forked by ``parent``, is being killed; how many
    there were."""
    arguments = connect_arguments(make_url(database_url))
    settlements: dict[str, list[Settlement]] = {}
    tallies = RunTallies()
    try:
        [rows] = write_now(arguments, [(READ_RUNS, ref_parameters(refs, parent=parent))])
        # They run in the order of the message. If none is known to have begun, the first has: code
        # that holds the interpreter lock lets no heartbeat say so.
        rows.sort(key=lambda row: refs.index(JobRef(row.id, row.lease)))
        begun = [row for row in rows if not row.waiting] or rows[:1]
        for row in rows:
            claim = claim_of(row)
            job_type = types.get(claim.type)
            ran_seconds = row.ran_seconds if row in begun else 0.0
            why = why_ended(ran_seconds, job_type) if row in begun else Released()
            outcome, ending = close_run(claim, why, job_type, GOOD_STANDING, Random())
            tallies.add_run(counts_of(claim, job_type, outcome, ending, ran_seconds))
            settlement = Settlement(claim.ref, ending, ran_seconds, tenant_id=claim.tenant_id)
            if row in begun:
                used = {"tokens_in": row.tokens_in, "tokens_out": row.tokens_out}
                settlement = settlement._replace(**used)
            settlements.setdefault(row.worker, []).append(settlement)
        if settlements:
            # Without projections: none has a result, and they may be what fails.
            statement = settle_statement([COUNT_KILLS])
            endings = [(statement, settled(*group)) for group in settlements.items()]
            tallies.add_all([recycled(rows[0].pool)])
            gone = [(LEAVE_WITHOUT_RUNS, {"name": worker}) for worker in settlements]
            write_now(arguments, [*endings, (ADD, added(tallies.take().items())), *gone])
    except StateStoreUnavailable as error:
        logger.warning("could not settle the runs of a killed process: %s", error)
        return 0
    return sum(map(len, settlements.values()))


def defer_unknown(database_url: str, worker: str, name: str, refs: Sequence[JobRef]) -> None:
    """Defer the jobs of a message whose type this worker does not know."""
    message = (
        f"The worker does not know the job type {name!r}: is its module in FAIRLINE_JOB_MODULES,"
        " or FAIRLINE_DEMO_TYPES off?"
    )
    logger.error("%d jobs deferred: %s", len(refs), message)
    # Not the worker itself: it would be taken for a run that it knows of.
    parameters = ref_parameters(refs, message=message, worker=f"nobody@{worker}")
    try:
        write_now(
            connect_arguments(make_url(database_url)),
            [(CLAIM_UNKNOWN, parameters), (PUT_OFF_UNKNOWN, parameters)],
        )
    except StateStoreUnavailable as error:
        logger.warning("could not defer them; their leases expire: %s", error)
