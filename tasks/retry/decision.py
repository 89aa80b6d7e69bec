"""Retry decision for an unsuccessful run: when to run again and at what cost, or dead.

| failure class               | retried                   | costs      | dead                      |
|-----------------------------|---------------------------|------------|---------------------------|
| PERMANENT, POISON           | never                     |            | at once                   |
| DEPENDENCY                  | when it asks, or doubling | nothing    | never                     |
| WORKER_CRASH                | at once, later spread out | nothing    | at the fifth crash        |
| TIMEOUT, RESOURCE_VIOLATION | after the type's backoff  | an attempt | at the second of them     |
| APP_ERROR, and any other    | after the type's backoff  | an attempt | when attempts are used up |

Attempts of all classes count together, so a violation that uses the last one is final. For a
quarantined type, and a tenant without retry budget, retries that cost an attempt end earlier.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from random import Random
from typing import Literal

from tasks.retry.backoff import (
    APP_ERROR_SECONDS,
    backoff_seconds,
    crash_seconds,
    dependency_seconds,
    jittered,
)
from tasks.retry.guards import QUARANTINE_TRIES

#: A job that has crashed so many workers is dead.
CRASH_CAP = 5
#: Time and memory violations: of both together, one is retried.
VIOLATIONS = frozenset({"TIMEOUT", "RESOURCE_VIOLATION"})


class Verdict(StrEnum):
    """What becomes of the job."""

    RETRY = "retry"
    DEAD = "dead"


#: Why a job is dead; empty for one that is not.
Reason = Literal[
    "", "tries spent", "permanent", "poison", "quarantined", "retry budget spent", "crash cap"
]


@dataclass(frozen=True, slots=True)
class RetryLimits:
    """What a job type allows its jobs."""

    #: Attempts of a job in all.
    tries: int
    #: Delays after the first, second, … failure; the last one repeats.
    backoff_seconds: tuple[float, ...] = APP_ERROR_SECONDS
    #: Attempts by failure class, in place of ``tries``, for classes that cost them.
    class_tries: Mapping[str, int] = field(default_factory=dict, hash=False)

    def used_up(self, failure_class: str, history: History) -> bool:
        """Whether a failure of this class is final."""
        if (most := self.class_tries.get(failure_class)) is None:
            most = self.tries
            if failure_class in VIOLATIONS and history.violations:
                return True
        return history.attempt + 1 >= most


@dataclass(frozen=True, slots=True)
class History:
    """Earlier runs of the job, as the row has them."""

    #: Attempts used before this run.
    attempt: int
    #: Runs that were deferred without using an attempt.
    deferrals: int
    #: Workers lost with the job before this run.
    crashes: int = 0
    #: Attempts among them that broke a time or memory limit.
    violations: int = 0


@dataclass(frozen=True, slots=True)
class RetryStanding:
    """Current restrictions on the job's type and tenant."""

    quarantined: bool = False
    #: The tenant may have another retry.
    budget_left: bool = True


GOOD_STANDING = RetryStanding()


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The decision."""

    verdict: Verdict
    #: Delay before the next run, jitter included; 0 when dead.
    delay_seconds: float = 0.0
    #: Whether this run counts as an attempt.
    spends_try: bool = True
    reason: Reason = ""


def decide_retry(
    failure_class: str,
    history: History,
    limits: RetryLimits,
    chance: Random,
    *,
    retry_after: float | None = None,
    standing: RetryStanding = GOOD_STANDING,
) -> RetryDecision:
    """What a failure of ``failure_class`` means for the job."""
    match failure_class:
        case "PERMANENT":
            return _dead("permanent")
        case "POISON":
            return _dead("poison")
        case "DEPENDENCY":
            seconds = dependency_seconds(history.deferrals, retry_after)
            delay = jittered(seconds, chance, never_less=retry_after is not None)
            return RetryDecision(Verdict.RETRY, delay, spends_try=False)
        case "WORKER_CRASH" if history.crashes + 1 >= CRASH_CAP:
            return _dead("crash cap", spends_try=False)
        case "WORKER_CRASH":
            delay = crash_seconds(history.crashes + 1, chance)
            return RetryDecision(Verdict.RETRY, delay, spends_try=False)

    spent = history.attempt + 1
    if limits.used_up(failure_class, history):
        return _dead("tries spent")
    if standing.quarantined and spent >= QUARANTINE_TRIES:
        return _dead("quarantined")
    if not standing.budget_left:
        return _dead("retry budget spent")
    wait = backoff_seconds(spent, limits.backoff_seconds)
    return RetryDecision(Verdict.RETRY, jittered(wait, chance))


def _dead(reason: Reason, *, spends_try: bool = True) -> RetryDecision:
    return RetryDecision(Verdict.DEAD, spends_try=spends_try, reason=reason)
