"""Outcomes of runs, a closed set of values, and the ending that each becomes in the row."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.store.errors import StateStoreUnavailable
from tasks.errors import (
    Cancelled,
    DependencyFailure,
    DependencyOutage,
    Drained,
    LeaseLost,
    Permanent,
    Poison,
    QuotaSpent,
    ResourceViolation,
    Snooze,
    TimeLimit,
)
from tasks.retry.backoff import MOST_WAIT_SECONDS
from tasks.retry.decision import History, RetryLimits, RetryStanding, Verdict, decide_retry
from tasks.worker.texts import plain_text

#: Longest error text kept in the row.
MESSAGE_CHARACTERS = 2000
#: Largest result kept in the row, as JSON.
RESULT_BYTES = 1_000_000
#: Longest name of a dependency, and of the reason for its outage, in counts.
NAME_CHARACTERS = 100
#: Reasons to give up early that are added to the error message.
REASONS_SHOWN = frozenset({"quarantined", "retry budget spent"})


@dataclass(frozen=True, slots=True)
class Succeeded:
    """The function returned."""

    #: What it returned, as JSON.
    result: str


@dataclass(frozen=True, slots=True)
class Failed:
    """The function raised."""

    failure_class: FailureClass
    message: str
    retry_after: float | None = None
    #: Name of the dependency of a DEPENDENCY failure.
    dependency: str | None = None
    #: The dependency works, but rejected the call because its quota is spent.
    refused: bool = False
    #: Why the dependency refuses everybody's calls, if it does.
    outage: str = ""


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The function raised Snooze."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Released:
    """The claim is released unused: the worker drains, or the dependency must not be called."""


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The run was stopped with its worker; the next run is not the first any more."""


@dataclass(frozen=True, slots=True)
class Deferred:
    """The job cannot be completed here at the moment: a later run can."""

    message: str


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The job was cancelled and has stopped."""


Outcome = Succeeded | Failed | Snoozed | Released | HandedBack | Deferred | Withdrawn


def outcome_of(error: BaseException) -> Outcome:
    """Classify what a job function raised, whatever that is."""
    message = plain_text(error, MESSAGE_CHARACTERS) or type(error).__name__
    try:
        return _classified(error, message)
    except Exception as odd:  # noqa: BLE001 - an error may be odd enough to break even this
        odder = plain_text(odd, MESSAGE_CHARACTERS)
        name = type(error).__name__
        return Failed(FailureClass.APP_ERROR, f"{name}, which cannot be read ({odder}): {message}")


def seconds_of(said: float) -> float:
    """Seconds that a job or a dependency named, from 0 to a year; NaN counts as 0."""
    return max(0.0, min(float(said), MOST_WAIT_SECONDS))


def _classified(error: BaseException, message: str) -> Outcome:
    match error:
        case LeaseLost():
            return Released()  # nothing this run writes is accepted
        case Drained() | StateStoreUnavailable():
            return HandedBack()
        case BaseException() if type(error).__name__ == "GreenletExit":
            return HandedBack()  # its worker is being shut down at once
        case Cancelled():
            return Withdrawn()
        case TimeLimit():
            return Failed(FailureClass.TIMEOUT, message)
        case ResourceViolation():
            return Failed(FailureClass.RESOURCE_VIOLATION, message)
        case MemoryError():
            return Failed(FailureClass.RESOURCE_VIOLATION, f"The run is out of memory. {message}")
        case Snooze():
            return Snoozed(seconds_of(error.seconds))
        case Permanent():
            return Failed(FailureClass.PERMANENT, message)
        case Poison():
            return Failed(FailureClass.POISON, message)
        case DependencyFailure():
            name = plain_text(error.name, NAME_CHARACTERS)
            outage = error.reason if isinstance(error, DependencyOutage) else ""
            return Failed(
                FailureClass.DEPENDENCY,
                message,
                None if error.retry_after is None else seconds_of(error.retry_after),
                name,
                refused=isinstance(error, QuotaSpent),
                outage=plain_text(outage, NAME_CHARACTERS),
            )
        case _:
            return Failed(FailureClass.APP_ERROR, f"{type(error).__name__}: {message}")


def outcome_of_result(result: bytes) -> Outcome:
    """What a function returned, as JSON: a failure if it is too large for the row."""
    if len(result) > RESULT_BYTES:
        return Failed(
            FailureClass.PERMANENT,
            f"The result has {len(result)} bytes; at most {RESULT_BYTES} are kept."
            " Store it elsewhere and return its location.",
        )
    return Succeeded(result.decode())


def ending_of(
    outcome: Outcome, history: History, limits: RetryLimits, standing: RetryStanding, chance: Random
) -> Ending:
    """The ending that an outcome becomes: the only place where that is decided."""
    match outcome:
        case Succeeded(result):
            return Ending(JobStatus.SUCCEEDED, tries_spent=1, result=result)
        case Snoozed(seconds):
            return Ending(JobStatus.SCHEDULED, deferrals=1, delay_seconds=seconds)
        case Released():
            return Ending(JobStatus.QUEUED)
        case HandedBack():
            return Ending(JobStatus.QUEUED, deferrals=1)
        case Withdrawn():
            return Ending(JobStatus.CANCELLED)
        case Deferred(message):
            waits = Failed(FailureClass.DEPENDENCY, message)
            return ending_of(waits, history, limits, standing, chance)
        case Failed(failure_class, message, retry_after):
            decision = decide_retry(
                failure_class, history, limits, chance, retry_after=retry_after, standing=standing
            )
            retry = decision.verdict is Verdict.RETRY
            why = decision.reason if decision.reason in REASONS_SHOWN else ""
            return Ending(
                JobStatus.SCHEDULED if retry else JobStatus.DEAD,
                tries_spent=int(decision.spends_try),
                deferrals=int(not decision.spends_try),
                delay_seconds=decision.delay_seconds,
                error_class=failure_class,
                error_message=f"{message} ({why})" if why else message,
            )
