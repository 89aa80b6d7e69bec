"""What a run's outcome means: for the job, and for circuits, quarantine and retry budgets.

No I/O and no lock, so that the watchdog's thread may call it too.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

from models.jobs.claim import Claim
from models.jobs.settle import Ending, Settlement
from models.jobs.states import FailureClass, JobStatus
from models.pools import POOLS, RUN_BOUNDS, WAIT_BOUNDS
from models.tallies import (
    MICROSECONDS,
    Count,
    TallyKind,
    joined,
    observed,
    outage_name,
    run_name,
)
from models.tenant_tallies import RunCounts, TenantType
from tasks.registry import JobType
from tasks.retry.decision import History, RetryLimits, RetryStanding
from tasks.retry.guards import budget_spent
from tasks.worker.held import Held
from tasks.worker.outcome import Failed, Outcome, Succeeded, ending_of
from tasks.worker.rules import Rules


def close_run(
    claim: Claim,
    outcome: Outcome,
    job_type: JobType | None,
    standing: RetryStanding,
    chance: Random,
) -> tuple[Outcome, Ending]:
    """The outcome, or what it has to count as, and the ending of the run."""
    limits = job_type.limits if job_type else RetryLimits(POOLS[claim.pool].tries)
    history = History(claim.attempt, claim.deferrals, claim.crashes, claim.violations)
    try:
        return outcome, ending_of(outcome, history, limits, standing, chance)
    except Exception as error:  # noqa: BLE001 - a job may raise with invalid values
        outcome = Failed(FailureClass.APP_ERROR, f"{outcome!r} is invalid: {error}"[:500])
        return outcome, ending_of(outcome, history, limits, standing, chance)


def standing_of(claim: Claim, rules: Rules, unwritten: tuple[int, int] = (0, 0)) -> RetryStanding:
    """Quarantine of the job's type and retry budget of its tenant.

    ``unwritten`` are first runs and retries of this process that the leader cannot know yet: they
    bound what a tenant can overdraw before it is judged.
    """
    return RetryStanding(
        quarantined=claim.type in rules.quarantined
        or (claim.tenant_id, claim.type) in rules.tenants_quarantined,
        budget_left=claim.tenant_id not in rules.without_budget
        and not budget_spent(*unwritten, was=False),
    )


def settlement_of(
    claim: Claim, ending: Ending, run_seconds: float, held: Held | None
) -> Settlement:
    """The ending with what the run has reported and used."""
    if held is None:
        return Settlement(claim.ref, ending, run_seconds, tenant_id=claim.tenant_id)
    return Settlement(
        *(claim.ref, ending, run_seconds, held.progress, held.tokens_in, held.tokens_out),
        logged=held.logged,
        tenant_id=claim.tenant_id,
    )


def counts_of(
    claim: Claim,
    job_type: JobType | None,
    outcome: Outcome,
    ending: Ending,
    run_seconds: float,
    waited: float | None = None,
) -> RunCounts:
    """What a run adds, see :class:`TallyKind`; ``waited`` is how long its job had been due at its
    first start, and None at another.

    Only runs that succeeded or failed count for the policies. Run times are counted by bin there,
    see :mod:`models.tallies`.
    """
    totals = totals_of(claim, ending, run_seconds, waited)
    return policy_counts(claim, job_type, outcome, ending, run_seconds, waited, totals)


def totals_of(
    claim: Claim, ending: Ending, run_seconds: float, waited: float | None
) -> list[Count]:
    """What a run adds to the metrics; a claim that is handed back adds nothing."""
    if ending.status is JobStatus.QUEUED or run_seconds <= 0:
        return []
    totals = [observed(TallyKind.RUN_SECONDS, claim.pool, run_seconds, RUN_BOUNDS)]
    if waited is not None:
        totals.append(observed(TallyKind.WAIT_SECONDS, claim.pool, waited, WAIT_BOUNDS))
    if ending.status is JobStatus.SCHEDULED and ending.error_class is not None:
        totals.append(((TallyKind.RETRIED, joined(claim.pool, ending.error_class)), (1, 0)))
    return totals


def policy_counts(
    claim: Claim,
    job_type: JobType | None,
    outcome: Outcome,
    ending: Ending,
    run_seconds: float,
    waited: float | None,
    totals: Sequence[Count],
) -> RunCounts:
    """What a run adds for circuits, quarantine, classification and retry budgets; with totals."""
    of = TenantType(claim.type, claim.tenant_id)
    if not isinstance(outcome, Succeeded | Failed):
        return RunCounts([], of, False, totals)
    counts: list[Count] = []
    dependency = job_type.dependency if job_type else None
    failed = isinstance(outcome, Failed)
    if isinstance(outcome, Failed):
        if outcome.refused:
            # A quota: the dependency is there, and neither good nor bad.
            return RunCounts(counts, of, False, totals)
        if outcome.failure_class is FailureClass.DEPENDENCY:
            # Says nothing about the type or the tenant.
            counts += failed_call(outcome, outcome.dependency or dependency or "?")
            return RunCounts(counts, of, True, totals)
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
    if waited is not None:
        due = int(waited * MICROSECONDS)
        counts.append(((TallyKind.WAIT, run_name(claim.pool, claim.type, due, False)), (1, due)))
    retried = failed and ending.status is JobStatus.SCHEDULED
    if first or retried:
        counts.append(((TallyKind.RETRY, str(claim.tenant_id)), (int(first), int(retried))))
    return RunCounts(counts, of, failed or over, totals)


def failed_call(outcome: Failed, dependency: str) -> list[Count]:
    """A call that failed, and why if that concerns all tenants."""
    counts: list[Count] = [((TallyKind.DEPENDENCY, dependency), (1, 1))]
    if outcome.outage:
        counts.append(((TallyKind.OUTAGE, outage_name(dependency, outcome.outage)), (1, 1)))
    return counts
