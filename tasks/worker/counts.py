"""Count how runs ended and how long they took, for circuits, quarantine and retry budgets.

``run`` counts run times by bin, see :mod:`models.durations`: runs in ``total``, their
microseconds in ``bad``, so that two seconds of a type are a few rows, and mean and p95 follow.
"""

from __future__ import annotations

from models.durations import MICROSECONDS, run_name
from models.jobs.claim import Claim
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.pools import POOLS
from models.tallies import Count, Tallies
from tasks.registry import JobType
from tasks.worker.outcome import Failed, Outcome, Succeeded


def count_run(
    tallies: Tallies,
    claim: Claim,
    job_type: JobType | None,
    outcome: Outcome,
    ending: Ending,
    run_seconds: float,
) -> None:
    """Count a run that succeeded or failed; others do not count."""
    if isinstance(outcome, Succeeded | Failed):
        tallies.add_all(counts_of(claim, job_type, outcome, ending, run_seconds))


def counts_of(
    claim: Claim,
    job_type: JobType | None,
    outcome: Succeeded | Failed,
    ending: Ending,
    run_seconds: float,
) -> list[Count]:
    """What the run adds, by kind and name: in all, and the bad ones of them."""
    tenant = str(claim.tenant_id)
    counts: list[Count] = [(("hour", tenant), (1, 0))]
    dependency = job_type.dependency if job_type else None
    failed = isinstance(outcome, Failed)
    if isinstance(outcome, Failed):
        if outcome.refused:
            return counts  # a quota: the dependency is there, and neither good nor bad
        if outcome.failure_class is FailureClass.DEPENDENCY:
            # Says nothing about the type or the tenant.
            return [*counts, (("dependency", outcome.dependency or dependency or "?"), (1, 1))]
    if dependency:
        counts.append((("dependency", dependency), (1, 0)))
    bound = POOLS[claim.pool].bound_seconds
    over = bound is not None and run_seconds > bound
    ran = int(run_seconds * MICROSECONDS)
    counts += (
        (("type", claim.type), (1, int(failed))),
        (("violation", claim.type), (1, int(over))),
        (("run", run_name(claim.pool, claim.type, ran, over)), (1, ran)),
    )
    first = claim.attempt == 0
    retried = failed and ending.status is JobStatus.SCHEDULED
    if first or retried:
        counts.append((("retry", tenant), (int(first), int(retried))))
    return counts
