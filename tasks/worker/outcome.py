"""How a run ended: a closed set of values, and what each becomes in the row."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from models.jobs.settle import Ending
from models.jobs.states import FailureClass, JobStatus
from models.store.errors import StateStoreUnavailable
from tasks.errors import (
    Cancelled,
    DependencyFailure,
    Drained,
    LeaseLost,
    Permanent,
    Poison,
    QuotaSpent,
    ResourceViolation,
    Snooze,
    TimeLimit,
)
from tasks.retry import History, RetryLimits, RetryStanding, Verdict, decide_retry

#: Longest error text kept in the row.
MESSAGE_CHARACTERS = 2000
#: Largest result kept in the row, as JSON.
RESULT_BYTES = 1_000_000
#: Longest name of a dependency that is counted under it.
NAME_CHARACTERS = 100
#: Reasons to give up early that stand in the error's text.
REASONS_TOLD = frozenset({"quarantined", "retry budget spent"})


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
    #: Whose fault a DEPENDENCY failure is.
    dependency: str | None = None
    #: It works, and refused because its quota is spent.
    refused: bool = False


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The function asked to be run later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Released:
    """The claim is handed back unused: the worker stops, or its dependency is not to be called."""


@dataclass(frozen=True, slots=True)
class HandedBack:
    """The run had begun when its worker was stopped: nobody's fault, and not the first any more."""


@dataclass(frozen=True, slots=True)
class Withdrawn:
    """The job was cancelled and stopped for it."""


Outcome = Succeeded | Failed | Snoozed | Released | HandedBack | Withdrawn


def outcome_of(error: BaseException) -> Outcome:
    """Classify what a job function raised, whatever that is."""
    message = plain_text(error, MESSAGE_CHARACTERS) or type(error).__name__
    match error:
        case LeaseLost():
            return Released()  # nothing this run says will be taken
        case Drained() | StateStoreUnavailable():
            return HandedBack()
        case BaseException() if type(error).__name__ == "GreenletExit":
            return HandedBack()  # its worker was told to end at once; the job did nothing wrong
        case Cancelled():
            return Withdrawn()
        case TimeLimit():
            return Failed(FailureClass.TIMEOUT, message)
        case ResourceViolation():
            return Failed(FailureClass.RESOURCE_VIOLATION, message)
        case MemoryError():
            return Failed(FailureClass.RESOURCE_VIOLATION, f"The run is out of memory. {message}")
        case Snooze():
            return Snoozed(error.seconds)
        case Permanent():
            return Failed(FailureClass.PERMANENT, message)
        case Poison():
            return Failed(FailureClass.POISON, message)
        case DependencyFailure():
            name = plain_text(error.name, NAME_CHARACTERS)
            refused = isinstance(error, QuotaSpent)
            return Failed(FailureClass.DEPENDENCY, message, error.retry_after, name, refused)
        case _:
            return Failed(FailureClass.APP_ERROR, f"{type(error).__name__}: {message}")


def outcome_of_result(result: bytes) -> Outcome:
    """What a function returned, as JSON: kept unless it is too much for a row."""
    if len(result) > RESULT_BYTES:
        return Failed(
            FailureClass.PERMANENT,
            f"The result has {len(result)} bytes; at most {RESULT_BYTES} are kept."
            " Put it elsewhere and return where it is.",
        )
    return Succeeded(result.decode())


def plain_text(value: object, characters: int) -> str:
    """What ``value`` says of itself, as far as PostgreSQL can store it."""
    try:
        text = str(value)
    except Exception as error:  # noqa: BLE001 - an error that cannot even say what it is
        text = f"({type(error).__name__} while reading the message)"
    text = text[:characters].replace("\x00", "")
    return text.encode("utf-8", "replace").decode()


def ending_of(
    outcome: Outcome, history: History, limits: RetryLimits, standing: RetryStanding, chance: Random
) -> Ending:
    """The one place where an outcome becomes a state."""
    match outcome:
        case Succeeded(result):
            return Ending(JobStatus.SUCCEEDED, tries_spent=1, result=result)
        case Snoozed(seconds):
            return Ending(JobStatus.SCHEDULED, deferrals=1, delay_seconds=max(0.0, seconds))
        case Released():
            return Ending(JobStatus.QUEUED)
        case HandedBack():
            return Ending(JobStatus.QUEUED, deferrals=1)
        case Withdrawn():
            return Ending(JobStatus.CANCELLED)
        case Failed(failure_class, message, retry_after):
            decision = decide_retry(
                failure_class, history, limits, chance, retry_after=retry_after, standing=standing
            )
            retry = decision.verdict is Verdict.RETRY
            # "tries spent" is what everybody expects; the other reasons are worth a word.
            why = decision.reason if decision.reason in REASONS_TOLD else ""
            return Ending(
                JobStatus.SCHEDULED if retry else JobStatus.DEAD,
                tries_spent=int(decision.spends_try),
                deferrals=int(not decision.spends_try),
                delay_seconds=decision.delay_seconds,
                error_class=failure_class,
                error_message=f"{message} ({why})" if why else message,
            )
