"""The retry policy's properties."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.states import FailureClass, JobStatus
from tasks.errors import DependencyFailure, Permanent, Snooze
from tasks.retry import History, Verdict, backoff_seconds, decide_retry
from tasks.retry.backoff import APP_ERROR_SECONDS, JITTER, dependency_seconds
from tasks.runtime.outcome import (
    Ending,
    Failed,
    Released,
    Snoozed,
    Succeeded,
    ending_of,
    outcome_of,
)

classes = st.sampled_from([c for c in FailureClass if c != FailureClass.WORKER_CRASH])
histories = st.builds(
    History,
    attempt=st.integers(0, 30),
    deferrals=st.integers(0, 100_000),
    tries=st.integers(1, 20),
)


@given(classes, histories, st.randoms(), st.none() | st.floats(-10, 1e9))
def test_every_decision_is_bounded(
    failure: str, history: History, chance: Random, retry_after: float | None
) -> None:
    decision = decide_retry(failure, history, chance, retry_after)
    assert 0 <= decision.delay_seconds <= 3600 * (1 + JITTER)
    if decision.verdict is Verdict.DEAD:
        assert decision.delay_seconds == 0


@given(classes, st.integers(1, 20), st.randoms())
def test_a_job_that_always_fails_ends_after_its_tries_or_never_spends_one(
    failure: str, tries: int, chance: Random
) -> None:
    spent = 0
    for run in range(1, 60):
        decision = decide_retry(failure, History(spent, run - 1, tries), chance)
        spent += decision.spends_try
        if decision.verdict is Verdict.DEAD:
            break
    if failure == FailureClass.DEPENDENCY:
        assert spent == 0
    elif failure in (FailureClass.PERMANENT, FailureClass.POISON):
        assert spent == 1
    elif failure == FailureClass.APP_ERROR:
        assert spent == tries
    else:
        assert spent == min(tries, 2)


@pytest.mark.parametrize(("failures", "seconds"), list(enumerate(APP_ERROR_SECONDS, start=1)))
@given(chance=st.randoms())
def test_app_errors_wait_as_promised_with_jitter(
    failures: int, seconds: float, chance: Random
) -> None:
    assert backoff_seconds(failures) == seconds
    delay = decide_retry("APP_ERROR", History(failures - 1, 0, 20), chance).delay_seconds
    assert seconds * (1 - JITTER) <= delay <= seconds * (1 + JITTER)


@given(st.floats(0, 3600), st.randoms(), histories)
def test_retry_after_is_never_undercut(asked: float, chance: Random, history: History) -> None:
    assert decide_retry("DEPENDENCY", history, chance, asked).delay_seconds >= asked


@given(st.integers(0, 100_000))
def test_waits_for_a_dependency_grow_to_five_minutes(deferrals: int) -> None:
    here, further = dependency_seconds(deferrals, None), dependency_seconds(deferrals + 1, None)
    assert 2 <= here <= further <= 300


def test_what_a_job_raises_is_classified() -> None:
    assert outcome_of(Permanent("no")) == Failed(FailureClass.PERMANENT, "no")
    assert outcome_of(DependencyFailure("claude", "busy", retry_after=7)) == Failed(
        FailureClass.DEPENDENCY, "busy", 7
    )
    assert outcome_of(Snooze(5)) == Snoozed(5)
    assert outcome_of(KeyError("x")) == Failed(FailureClass.APP_ERROR, "KeyError: 'x'")
    assert "\x00" not in outcome_of(ValueError("a\x00b")).message  # type: ignore[union-attr]
    assert len(outcome_of(ValueError("a" * 10_000)).message) < 2100  # type: ignore[union-attr]


@given(histories, st.randoms())
def test_every_outcome_has_an_ending(history: History, chance: Random) -> None:
    assert ending_of(Succeeded("1"), history, chance) == Ending(
        JobStatus.SUCCEEDED, tries_spent=1, result="1"
    )
    assert ending_of(Released(), history, chance) == Ending(JobStatus.QUEUED)
    snoozed = ending_of(Snoozed(3), history, chance)
    assert (snoozed.status, snoozed.tries_spent, snoozed.delay_seconds) == ("scheduled", 0, 3)
    dead = ending_of(Failed(FailureClass.PERMANENT, "no"), history, chance)
    assert (dead.status, dead.error_class) == ("dead", "PERMANENT")
