"""One decision an unsuccessful run: again, when and at what price, or dead."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from random import Random

from tasks.retry.backoff import backoff_seconds, dependency_seconds, jittered


class Verdict(StrEnum):
    """What becomes of the job."""

    RETRY = "retry"
    DEAD = "dead"


@dataclass(frozen=True, slots=True)
class History:
    """What the row remembers of earlier runs."""

    #: Tries spent before this run.
    attempt: int
    #: Runs that were put off without spending a try.
    deferrals: int
    #: Tries the job may spend in all.
    tries: int


@dataclass(frozen=True, slots=True)
class RetryDecision:
    """The answer of the policy."""

    verdict: Verdict
    #: Wait before the next run, jitter included; 0 when dead.
    delay_seconds: float = 0.0
    #: Whether this run counts as a try.
    spends_try: bool = True


#: Tries for classes that do not follow the pool's number: one retry, then dead.
ONE_RETRY = {"TIMEOUT": 2, "RESOURCE_VIOLATION": 2}


def decide_retry(
    failure_class: str, history: History, chance: Random, retry_after: float | None = None
) -> RetryDecision:
    """What a failure of ``failure_class`` means, given the history and a source of chance."""
    if failure_class == "PERMANENT" or failure_class == "POISON":
        return RetryDecision(Verdict.DEAD)
    if failure_class == "DEPENDENCY":
        seconds = dependency_seconds(history.deferrals, retry_after)
        delay = jittered(seconds, chance, never_less=retry_after is not None)
        return RetryDecision(Verdict.RETRY, delay, spends_try=False)
    spent = history.attempt + 1
    if spent >= min(history.tries, ONE_RETRY.get(failure_class, history.tries)):
        return RetryDecision(Verdict.DEAD)
    return RetryDecision(Verdict.RETRY, jittered(backoff_seconds(spent), chance))
