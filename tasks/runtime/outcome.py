"""How a run ended: a closed set of values, and what each becomes in the row."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random

from models.states import FailureClass, JobStatus
from tasks.errors import DependencyFailure, Permanent, Snooze
from tasks.retry import History, Verdict, decide_retry

#: Longest error text kept in the row.
MESSAGE_CHARACTERS = 2000


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


@dataclass(frozen=True, slots=True)
class Snoozed:
    """The function asked to be run later."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Released:
    """The worker stops; the job was claimed but not started."""


Outcome = Succeeded | Failed | Snoozed | Released


@dataclass(frozen=True, slots=True)
class Ending:
    """What the row becomes."""

    status: JobStatus
    #: Tries to add to the count.
    tries_spent: int = 0
    #: Put-offs to add to the count.
    deferrals: int = 0
    #: Seconds until a scheduled job is due again.
    delay_seconds: float = 0.0
    #: JSON text.
    result: str | None = None
    error_class: FailureClass | None = None
    error_message: str | None = None


def outcome_of(error: BaseException) -> Outcome:
    """Classify what a job function raised."""
    message = (str(error) or type(error).__name__).replace("\x00", "")[:MESSAGE_CHARACTERS]
    match error:
        case BaseException() if type(error).__name__ == "GreenletExit":
            return Released()  # its worker was told to end at once; the job did nothing wrong
        case Snooze():
            return Snoozed(error.seconds)
        case Permanent():
            return Failed(FailureClass.PERMANENT, message)
        case DependencyFailure():
            return Failed(FailureClass.DEPENDENCY, message, error.retry_after)
        case _:
            return Failed(FailureClass.APP_ERROR, f"{type(error).__name__}: {message}")


def ending_of(outcome: Outcome, history: History, chance: Random) -> Ending:
    """The one place where an outcome becomes a state."""
    match outcome:
        case Succeeded(result):
            return Ending(JobStatus.SUCCEEDED, tries_spent=1, result=result)
        case Snoozed(seconds):
            return Ending(JobStatus.SCHEDULED, deferrals=1, delay_seconds=max(0.0, seconds))
        case Released():
            return Ending(JobStatus.QUEUED)
        case Failed(failure_class, message, retry_after):
            decision = decide_retry(failure_class, history, chance, retry_after)
            retry = decision.verdict is Verdict.RETRY
            return Ending(
                JobStatus.SCHEDULED if retry else JobStatus.DEAD,
                tries_spent=int(decision.spends_try),
                deferrals=int(not decision.spends_try),
                delay_seconds=decision.delay_seconds,
                error_class=failure_class,
                error_message=message,
            )
