"""The retry policy's properties."""

from __future__ import annotations

from collections import Counter
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from models.jobs.settle import Ending
from models.jobs.states import VIOLATION_CLASSES, FailureClass, JobStatus
from tasks.errors import DependencyFailure, Permanent, Snooze
from tasks.retry.backoff import (
    APP_ERROR_SECONDS,
    CRASH_SPREAD_SECONDS,
    JITTER,
    backoff_seconds,
    dependency_seconds,
)
from tasks.retry.decision import (
    CRASH_CAP,
    VIOLATIONS,
    History,
    RetryDecision,
    RetryLimits,
    RetryStanding,
    Verdict,
    decide_retry,
)
from tasks.worker.outcome import (
    Deferred,
    Failed,
    Released,
    Snoozed,
    Succeeded,
    ending_of,
    outcome_of,
)

SPENDING = ("APP_ERROR", "TIMEOUT", "RESOURCE_VIOLATION")
LONGEST_SECONDS = 3600.0

classes = st.sampled_from(FailureClass)
spending = st.sampled_from(SPENDING)
histories = st.builds(
    History,
    attempt=st.integers(0, 30),
    deferrals=st.integers(0, 100_000),
    crashes=st.integers(0, 10),
    violations=st.integers(0, 3),
)
limits = st.builds(
    RetryLimits,
    tries=st.integers(1, 20),
    backoff_seconds=st.lists(st.floats(0, LONGEST_SECONDS), max_size=6).map(tuple),
    class_tries=st.dictionaries(spending, st.integers(1, 20)),
)
standings = st.builds(RetryStanding, st.booleans(), st.booleans())
GOOD = RetryStanding()


def tries_until_dead(
    failures: list[str], limits: RetryLimits, standing: RetryStanding = GOOD
) -> int:
    """Tries that a job spends which fails in this way again and again."""
    spent = violations = 0
    for run in range(100):
        failure = failures[run % len(failures)]
        history = History(spent, run, violations=violations)
        decision = decide_retry(failure, history, limits, Random(1), standing=standing)
        spent += decision.spends_try
        violations += failure in VIOLATIONS
        if decision.verdict is Verdict.DEAD:
            return spent
    raise AssertionError("the job never ends")


@given(classes, histories, limits, standings, st.randoms(), st.none() | st.floats())
def test_every_decision_is_bounded_and_a_dead_one_says_why(
    failure: str,
    history: History,
    limits: RetryLimits,
    standing: RetryStanding,
    chance: Random,
    retry_after: float | None,
) -> None:
    decision = decide_retry(
        failure, history, limits, chance, retry_after=retry_after, standing=standing
    )
    assert 0 <= decision.delay_seconds <= LONGEST_SECONDS * (1 + JITTER)
    dead = decision.verdict is Verdict.DEAD
    assert dead == bool(decision.reason)
    if dead:
        assert decision.delay_seconds == 0


@given(spending, st.integers(1, 20))
def test_a_job_that_always_fails_spends_exactly_its_tries(failure: str, tries: int) -> None:
    expected = tries if failure == "APP_ERROR" else min(tries, 2)
    assert tries_until_dead([failure], RetryLimits(tries)) == expected


@given(spending, st.integers(1, 20), st.integers(1, 20))
def test_a_type_may_change_the_tries_of_a_class(failure: str, tries: int, changed: int) -> None:
    assert (
        tries_until_dead([failure], RetryLimits(tries, class_tries={failure: changed})) == changed
    )


@given(st.lists(spending, min_size=1, max_size=20), st.integers(1, 20))
def test_of_any_failures_one_violation_is_retried_as_long_as_there_are_attempts(
    failures: list[str], tries: int
) -> None:
    violations = 0
    for spent, failure in enumerate(failures):
        history = History(spent, 0, violations=violations)
        decision = decide_retry(failure, history, RetryLimits(tries), Random(1))
        second = failure in VIOLATIONS and violations > 0
        assert (decision.verdict is Verdict.DEAD) == (second or spent + 1 >= tries)
        if decision.verdict is Verdict.DEAD:
            return
        violations += failure in VIOLATIONS


def test_the_row_counts_what_the_policy_calls_a_violation() -> None:
    assert {failure.value for failure in VIOLATION_CLASSES} == VIOLATIONS


@given(st.lists(spending, min_size=1, max_size=5), limits, standings)
def test_no_mixture_of_failures_outlives_the_most_patient_limit(
    failures: list[str], limits: RetryLimits, standing: RetryStanding
) -> None:
    most = max([limits.tries, *limits.class_tries.values()])
    assert 1 <= tries_until_dead(failures, limits, standing) <= most


@pytest.mark.parametrize(("failure", "reason"), [("PERMANENT", "permanent"), ("POISON", "poison")])
@given(history=histories, limits=limits, standing=standings)
def test_what_cannot_get_better_is_dead_at_once(
    failure: str, reason: str, history: History, limits: RetryLimits, standing: RetryStanding
) -> None:
    decision = decide_retry(failure, history, limits, Random(1), standing=standing)
    assert (decision.verdict, decision.reason) == (Verdict.DEAD, reason)


@given(histories, limits, standings, st.randoms(), st.none() | st.floats())
def test_a_dependency_costs_no_try_never_kills_and_never_is_hammered(
    history: History,
    limits: RetryLimits,
    standing: RetryStanding,
    chance: Random,
    retry_after: float | None,
) -> None:
    decision = decide_retry(
        "DEPENDENCY", history, limits, chance, retry_after=retry_after, standing=standing
    )
    assert (decision.verdict, decision.spends_try) == (Verdict.RETRY, False)
    assert decision.delay_seconds > 0


@given(histories, limits, standings, st.randoms(use_true_random=False))
def test_a_crash_costs_no_try_until_the_fifth_and_no_wait_at_first(
    history: History, limits: RetryLimits, standing: RetryStanding, chance: Random
) -> None:
    decision = decide_retry("WORKER_CRASH", history, limits, chance, standing=standing)
    if history.crashes == 0:
        assert decision == RetryDecision(Verdict.RETRY, 0.0, spends_try=False)
    elif history.crashes < CRASH_CAP - 1:
        assert (decision.verdict, decision.spends_try) == (Verdict.RETRY, False)
        assert 0 <= decision.delay_seconds <= CRASH_SPREAD_SECONDS * 2 ** (history.crashes - 1)
    else:
        assert decision == RetryDecision(Verdict.DEAD, spends_try=False, reason="crash cap")


def test_jobs_that_lost_a_worker_together_come_back_apart() -> None:
    chance, limits = Random(1), RetryLimits(3)
    for crashes in (1, 2, 3):
        span = CRASH_SPREAD_SECONDS * 2 ** (crashes - 1)
        waits = [
            decide_retry("WORKER_CRASH", History(0, 0, crashes), limits, chance).delay_seconds
            for _ in range(500)
        ]
        quarters = Counter(int(4 * wait / span) for wait in waits)
        assert all(quarters[quarter] > 80 for quarter in range(4)), quarters


def test_a_job_that_kills_every_worker_is_dead_after_five() -> None:
    verdicts = [
        decide_retry("WORKER_CRASH", History(0, 0, crashes), RetryLimits(3), Random(1)).verdict
        for crashes in range(5)
    ]
    assert verdicts == [Verdict.RETRY] * 4 + [Verdict.DEAD]


@given(st.lists(spending, min_size=1, max_size=5), limits)
def test_a_quarantined_type_gets_two_tries_whatever_it_asked_for(
    failures: list[str], limits: RetryLimits
) -> None:
    assert tries_until_dead(failures, limits, RetryStanding(quarantined=True)) <= 2


def test_early_deaths_say_what_brought_them() -> None:
    def reason(standing: RetryStanding, attempt: int = 1) -> str:
        history = History(attempt, 0)
        return decide_retry(
            "APP_ERROR", history, RetryLimits(5), Random(1), standing=standing
        ).reason

    assert reason(GOOD) == ""
    assert reason(RetryStanding(quarantined=True), attempt=0) == ""
    assert reason(RetryStanding(quarantined=True)) == "quarantined"
    assert reason(RetryStanding(budget_left=False), attempt=0) == "retry budget spent"
    assert reason(RetryStanding(quarantined=True, budget_left=False), attempt=4) == "tries spent"


@given(spending, histories, limits, st.booleans())
def test_without_a_budget_no_try_is_granted(
    failure: str, history: History, limits: RetryLimits, quarantined: bool
) -> None:
    standing = RetryStanding(quarantined, budget_left=False)
    decision = decide_retry(failure, history, limits, Random(1), standing=standing)
    assert decision.verdict is Verdict.DEAD


@given(classes, histories, limits, standings)
def test_a_bad_standing_never_helps_and_changes_no_price(
    failure: str, history: History, limits: RetryLimits, standing: RetryStanding
) -> None:
    good = decide_retry(failure, history, limits, Random(1))
    bad = decide_retry(failure, history, limits, Random(1), standing=standing)
    assert bad.spends_try == good.spends_try
    assert bad == good or bad.verdict is Verdict.DEAD


@pytest.mark.parametrize(("failures", "seconds"), list(enumerate(APP_ERROR_SECONDS, start=1)))
@given(chance=st.randoms())
def test_app_errors_wait_as_promised_with_jitter(
    failures: int, seconds: float, chance: Random
) -> None:
    assert backoff_seconds(failures) == seconds
    delay = decide_retry(
        "APP_ERROR", History(failures - 1, 0), RetryLimits(20), chance
    ).delay_seconds
    assert seconds * (1 - JITTER) <= delay <= seconds * (1 + JITTER)


@given(st.integers(1, 100), st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_the_last_wait_of_a_type_repeats(failures: int, waits: list[float]) -> None:
    assert backoff_seconds(failures, waits) == (waits + [waits[-1]] * 100)[failures - 1]


def test_a_type_may_wait_in_its_own_way() -> None:
    mine = RetryLimits(9, backoff_seconds=(10.0, 20.0), class_tries={"TIMEOUT": 9})
    for failure in ("APP_ERROR", "TIMEOUT"):
        delays = [
            decide_retry(failure, History(spent, 0), mine, Random(1)).delay_seconds
            for spent in range(3)
        ]
        assert delays == pytest.approx([10, 20, 20], rel=JITTER)


@given(st.floats(0, LONGEST_SECONDS), st.randoms(), histories)
def test_retry_after_is_never_undercut(asked: float, chance: Random, history: History) -> None:
    decision = decide_retry("DEPENDENCY", history, RetryLimits(3), chance, retry_after=asked)
    assert decision.delay_seconds >= asked


@given(st.integers(0, 100_000), st.sampled_from([None, 0.0, -3.0, float("nan")]))
def test_waits_for_a_dependency_grow_to_five_minutes(deferrals: int, said: float | None) -> None:
    here, further = dependency_seconds(deferrals, said), dependency_seconds(deferrals + 1, said)
    assert 2 <= here <= further <= 300


def test_limits_are_values() -> None:
    assert {RetryLimits(3), RetryLimits(3), RetryLimits(3, class_tries={"TIMEOUT": 3})} == {
        RetryLimits(3),
        RetryLimits(3, class_tries={"TIMEOUT": 3}),
    }


def test_what_a_job_raises_is_classified() -> None:
    assert outcome_of(Permanent("no")) == Failed(FailureClass.PERMANENT, "no")
    assert outcome_of(DependencyFailure("claude", "busy", retry_after=7)) == Failed(
        FailureClass.DEPENDENCY, "busy", 7, "claude"
    )
    assert outcome_of(Snooze(5)) == Snoozed(5)
    assert outcome_of(KeyError("x")) == Failed(FailureClass.APP_ERROR, "KeyError: 'x'")
    assert "\x00" not in outcome_of(ValueError("a\x00b")).message  # type: ignore[union-attr]
    assert len(outcome_of(ValueError("a" * 10_000)).message) < 2100  # type: ignore[union-attr]


@given(histories, limits, standings, st.randoms())
def test_every_outcome_has_an_ending(
    history: History, limits: RetryLimits, standing: RetryStanding, chance: Random
) -> None:
    assert ending_of(Released(), history, limits, standing, chance) == Ending(JobStatus.QUEUED)
    snoozed = ending_of(Snoozed(3), history, limits, standing, chance)
    assert (snoozed.status, snoozed.tries_spent, snoozed.delay_seconds) == ("scheduled", 0, 3)
    deferred = ending_of(Deferred("later"), history, limits, standing, chance)
    assert (deferred.status, deferred.tries_spent, deferred.deferrals) == ("scheduled", 0, 1)
    assert (deferred.error_class, deferred.error_message) == ("DEPENDENCY", "later")
    assert deferred.delay_seconds > 1
    failed = Failed(FailureClass.PERMANENT, "no")
    dead = ending_of(failed, history, limits, standing, chance)
    assert (dead.status, dead.error_class) == ("dead", "PERMANENT")


@pytest.mark.parametrize("result", ["null", "false", "0", "[]", '{"score": 0}', '{"error": "no"}'])
@given(history=histories, limits=limits, standing=standings)
def test_a_negative_result_is_a_result_and_never_retried(
    result: str, history: History, limits: RetryLimits, standing: RetryStanding
) -> None:
    ending = ending_of(Succeeded(result), history, limits, standing, Random(1))
    assert ending == Ending(JobStatus.SUCCEEDED, tries_spent=1, result=result)
