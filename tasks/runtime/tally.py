"""What one run adds to the counts that the policies of failure and duration look at.

``run`` counts run times by bin, see :mod:`tasks.runtime.durations`: runs in ``total``, their
microseconds in ``bad``, so that two seconds of a type are a few rows, and mean and p95 follow.
"""

from __future__ import annotations

from models.pools import POOLS
from models.states import FailureClass, JobStatus
from tasks.registry import JobType
from tasks.runtime.claim import Claim
from tasks.runtime.durations import MICROSECONDS, run_name
from tasks.runtime.outcome import Ending, Failed, Outcome, Succeeded
from tasks.runtime.tallies import Tallies


def count_run(
    tallies: Tallies,
    claim: Claim,
    job_type: JobType | None,
    outcome: Outcome,
    ending: Ending,
    run_seconds: float,
) -> None:
    """Count a run that gave a result or failed; what was put off or handed back is none."""
    if not isinstance(outcome, Succeeded | Failed):
        return
    tenant = str(claim.tenant_id)
    tallies.add("hour", tenant)
    dependency = job_type.dependency if job_type else None
    if isinstance(outcome, Failed) and outcome.refused:
        return  # a quota: the dependency is there, and neither good nor bad for its circuit
    if isinstance(outcome, Failed) and outcome.failure_class is FailureClass.DEPENDENCY:
        tallies.add("dependency", outcome.dependency or dependency or "?", bad=1)
        return  # says nothing about the type or the tenant
    if dependency:
        tallies.add("dependency", dependency)
    failed = isinstance(outcome, Failed)
    tallies.add("type", claim.type, bad=int(failed))
    bound = POOLS[claim.pool].bound_seconds
    over = bound is not None and run_seconds > bound
    tallies.add("violation", claim.type, bad=int(over))
    ran = int(run_seconds * MICROSECONDS)
    tallies.add("run", run_name(claim.pool, claim.type, ran, over), bad=ran)
    first = claim.attempt == 0
    retried = failed and ending.status is JobStatus.SCHEDULED
    if first or retried:
        tallies.add("retry", tenant, total=int(first), bad=int(retried))
