"""Count how runs ended and how long they took, for circuits, quarantine and retry budgets.

Run times are counted by bin, see :mod:`models.durations`: two seconds of a type are a few rows,
and mean and p95 follow from them.
"""

from __future__ import annotations

from models.durations import MICROSECONDS, run_name
from models.jobs.claim import Claim
from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.pools import POOLS
from models.tallies import Count, TallyKind
from tasks.registry import JobType
from tasks.worker.outcome import Failed, Outcome, Succeeded


def counts_of(
    claim: Claim, job_type: JobType | None, outcome: Outcome, ending: Ending, run_seconds: float
) -> list[Count]:
    """What a run adds that succeeded or failed, see :class:`TallyKind`; others do not count."""
    if not isinstance(outcome, Succeeded | Failed):
        return []
    tenant = str(claim.tenant_id)
    counts: list[Count] = [((TallyKind.HOUR, tenant), (1, 0))]
    dependency = job_type.dependency if job_type else None
    failed = isinstance(outcome, Failed)
    if isinstance(outcome, Failed):
        if outcome.refused:
            return counts  # a quota: the dependency is there, and neither good nor bad
        if outcome.failure_class is FailureClass.DEPENDENCY:
            # Says nothing about the type or the tenant.
            name = outcome.dependency or dependency or "?"
            return [*counts, ((TallyKind.DEPENDENCY, name), (1, 1))]
    if dependency:
        counts.append(((TallyKind.DEPENDENCY, dependency), (1, 0)))
    bound = POOLS[claim.pool].bound_seconds
    over = bound is not None and run_seconds > bound
    ran = int(run_seconds * MICROSECONDS)
    counts += (
        ((TallyKind.TYPE, claim.type), (1, int(failed))),
        ((TallyKind.VIOLATION, claim.type), (1, int(over))),
        ((TallyKind.RUN, run_name(claim.pool, claim.type, ran, over)), (1, ran)),
    )
    first = claim.attempt == 0
    retried = failed and ending.status is JobStatus.SCHEDULED
    if first or retried:
        counts.append(((TallyKind.RETRY, tenant), (int(first), int(retried))))
    return counts
