"""The pacer of a dependency: how fast jobs may flow towards it."""

from __future__ import annotations

from bisect import bisect_left

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.policy.quota import (
    BURST_SECONDS,
    MARGIN,
    OPENING_SECONDS,
    RAMP_SECONDS,
    READING_SECONDS,
    STEP_SECONDS,
    UNSEEN_TOKENS_IN,
    Left,
    QuotaBucket,
    QuotaPacer,
)

limits = st.floats(0.5, 20_000)
steps = st.lists(st.tuples(st.floats(0.001, 5.0), st.integers(0, 200)), min_size=1, max_size=60)


def flow(pacer: QuotaPacer, seconds: float, start: float = 0.0, step: float = 0.05) -> list[float]:
    """When jobs leave if as many wait as anybody could want."""
    moments: list[float] = []
    for turn in range(round(seconds / step) + 1):
        now = start + turn * step
        jobs = min(1000, 1000 if (room := pacer.allowance(now)) is None else room)
        pacer.spend(jobs, now)
        moments += [now] * jobs
    return moments


def new_pacer(now: float = 0.0, **fields: object) -> QuotaPacer:
    pacer = QuotaPacer()
    pacer.update(QuotaBucket(**fields), now)  # type: ignore[arg-type]  # whatever a test names
    return pacer


@given(limit=limits, turns=steps)
def test_no_window_sees_more_than_the_limit_and_a_burst(
    limit: float, turns: list[tuple[float, int]]
) -> None:
    pacer, now, sent = new_pacer(declared={"requests": limit}), 0.0, []
    for wait, wanted in turns:
        now += wait
        jobs = min(wanted, pacer.allowance(now) or 0)
        pacer.spend(jobs, now)
        sent.append((now, jobs))
    rate = MARGIN * limit / 60
    burst = max(1.0 + rate * STEP_SECONDS, rate * BURST_SECONDS)
    for first in range(len(sent)):
        for last in range(first, len(sent)):
            seconds = sent[last][0] - sent[first][0]
            jobs = sum(count for _, count in sent[first : last + 1])
            assert jobs <= rate * seconds + burst + 1e-6


@pytest.mark.parametrize("limit", [1, 2, 7, 60, 61, 600, 5000])
def test_a_minute_sees_no_more_than_the_limit_even_if_calls_are_two_seconds_late(
    limit: int,
) -> None:
    sent = flow(new_pacer(declared={"requests": limit}), 125.0)
    for first, moment in enumerate(sent):
        assert bisect_left(sent, moment + 60.0) - first <= limit
        if limit >= 60:
            assert bisect_left(sent, moment + 62.0) - first <= limit


def test_a_full_line_uses_nearly_all_of_the_quota() -> None:
    sent = flow(new_pacer(declared={"requests": 60}), 120)
    assert 112 <= len(sent) <= 116


def test_a_new_pacer_sends_no_burst() -> None:
    pacer = new_pacer(declared={"requests": 6000})
    assert pacer.allowance(0.0) == 0
    assert pacer.allowance(0.1) == 9


def test_a_pacer_without_limits_bounds_nothing() -> None:
    assert QuotaPacer().allowance(1.0) is None
    assert new_pacer().allowance(1.0) is None


def test_of_a_declared_and_a_learned_limit_the_lower_counts() -> None:
    learned = {"requests": Left(60, 60, 0.0)}
    assert QuotaBucket(declared={"requests": 30}, reading=learned).limits() == {"requests": 30}
    assert QuotaBucket(declared={"requests": 90}, reading=learned).limits() == {"requests": 60}
    assert QuotaBucket(reading=learned).limits() == {"requests": 60}
    old = QuotaBucket(declared={"requests": 90}, reading=learned, age_seconds=READING_SECONDS)
    assert old.limits() == {"requests": 90}


@given(closed=st.floats(0.1, 600), step=st.floats(0.01, 5.0))
def test_a_closed_pacer_gives_nothing_and_then_opens(closed: float, step: float) -> None:
    pacer = new_pacer(declared={"requests": 600}, closed_seconds=closed)
    now = 0.0
    while now < closed + OPENING_SECONDS:
        assert pacer.allowance(now) == 0
        now += max(step, closed / 50)
    assert (pacer.allowance(now + 1.0) or 0) >= 1


def test_a_pacer_that_opens_sends_no_burst() -> None:
    pacer = new_pacer(declared={"requests": 600})
    assert pacer.allowance(1.0) == 9
    pacer.update(QuotaBucket({"requests": 600}, closed_seconds=5.0), 1.0)
    opens = 6.0 + OPENING_SECONDS
    assert [
        pacer.allowance(opens - 0.01),
        pacer.allowance(opens + 0.01),
        pacer.allowance(opens + 0.5),
    ] == [
        0,
        0,
        4,
    ]


def test_a_pacer_without_limits_opens_slowly() -> None:
    pacer = new_pacer(closed_seconds=2.0)
    assert pacer.allowance(2.0) == 0
    sent = flow(pacer, 4.0, start=2.0 + OPENING_SECONDS)
    assert 10 <= len(sent) <= 30
    assert sum(1 for moment in sent if moment < 3.3) <= 2
    assert pacer.allowance(2.0 + OPENING_SECONDS + RAMP_SECONDS) is None


def test_what_is_left_counts_until_the_reset() -> None:
    reading = {"requests": Left(600, 3, 30.0)}
    pacer = new_pacer(reading=reading)
    pacer.update(QuotaBucket(reading=reading, age_seconds=0.0), 10.0)
    assert pacer.allowance(10.0) == 3
    pacer.spend(2, 10.0)
    assert pacer.allowance(10.0) == 1


def test_jobs_that_have_not_called_yet_are_taken_off_what_is_left() -> None:
    reading = {"requests": Left(600, 8, 30.0)}
    pacer = new_pacer(reading=reading)
    pacer.update(QuotaBucket(reading=reading, dispatched=5), 10.0)
    assert pacer.allowance(10.0) == 3


@given(limit=st.floats(1, 6000), reset=st.floats(0.5, 120), dispatched=st.integers(0, 50))
def test_nothing_left_is_no_deadlock_once_the_reset_has_passed(
    limit: float, reset: float, dispatched: int
) -> None:
    quota = QuotaBucket(reading={"requests": Left(limit, 0, reset)}, dispatched=dispatched)
    pacer = new_pacer()
    pacer.update(quota, 0.0)
    assert pacer.allowance(0.0) == 0
    assert (pacer.allowance(reset + 61.0 / MARGIN * max(1.0, 1.0 / limit)) or 0) >= 1


def test_what_is_used_up_comes_back_evenly() -> None:
    quota = QuotaBucket(reading={"requests": Left(60, 0, 60.0)})
    pacer = new_pacer()
    pacer.update(quota, 0.0)
    assert 53 <= len(flow(pacer, 60.0)) <= 58


@given(
    limit=limits,
    moments=st.lists(st.floats(-1e6, 1e6), min_size=2, max_size=40),
)
def test_a_clock_that_jumps_neither_blocks_nor_floods(limit: float, moments: list[float]) -> None:
    pacer = new_pacer(now=moments[0], declared={"requests": limit})
    for now in moments:
        room = pacer.allowance(now) or 0
        assert 0 <= room <= max(1.0, limit / 60)
        pacer.spend(room, now)
    assert (pacer.allowance(moments[-1] + 60.0 / MARGIN * max(1.0, 1.0 / limit)) or 0) >= 1


def test_a_clock_that_is_turned_back_fills_nothing() -> None:
    pacer = new_pacer(now=100.0, declared={"requests": 600})
    assert [pacer.allowance(100.0), pacer.allowance(99.0), pacer.allowance(98.0)] == [0, 0, 0]
    assert pacer.allowance(98.5) == 4


def test_a_call_that_cost_more_than_expected_is_paid_for_by_those_after_it() -> None:
    quota = QuotaBucket(declared={"tokens_in": 60_000})
    pacer = new_pacer(declared=quota.declared)
    pacer.report_usage(1, 1_000, 0)
    pacer.update(quota, 0.0)
    assert pacer.allowance(2.0) == 1
    pacer.spend(1, 2.0)
    pacer.report_usage(2, 6_000, 0)  # 4,000 too much: more than four seconds
    pacer.update(quota, 2.0)
    assert [pacer.allowance(4.0), pacer.allowance(6.0), pacer.allowance(8.0)] == [0, 0, 1]


def test_tokens_bound_calls_by_what_calls_cost() -> None:
    pacer = new_pacer(declared={"tokens_in": 60_000})
    pacer.report_usage(10, 20_000, 500)
    pacer.update(QuotaBucket(declared={"tokens_in": 60_000}), 0.0)
    assert 27 <= len(flow(pacer, 60.0)) <= 30  # 2,000 a call


@pytest.mark.parametrize("kind", ["tokens_in", "tokens_out", "tokens"])
def test_an_absurd_report_closes_no_dependency(kind: str) -> None:
    """What one job says a call cost is corrected by the calls after it."""
    quota = QuotaBucket(declared={kind: 60_000})
    pacer, calls, used = new_pacer(declared=quota.declared), 2, 10.0**12
    pacer.report_usage(1, 500, 500)
    pacer.report_usage(2, used, used)
    for turn in range(12_000):
        now = turn * 0.1
        pacer.update(quota, now)
        jobs = pacer.allowance(now) or 0
        pacer.spend(jobs, now)
        calls, used = calls + jobs, used + 500 * jobs
        pacer.report_usage(calls, used, used)
    assert calls > 100
    assert len(flow(pacer, 60.0, start=1_200.0)) >= 40


def test_a_call_that_costs_more_than_a_second_brings_still_passes() -> None:
    pacer = new_pacer(declared={"tokens_in": UNSEEN_TOKENS_IN / 2})
    assert 4 <= len(flow(pacer, 600.0)) <= 6


@given(
    limit=st.floats(1_000, 1_000_000),
    costs=st.lists(st.integers(1, 5_000), min_size=1, max_size=30),
)
def test_tokens_that_were_used_stay_within_the_limit_whatever_calls_cost(
    limit: float, costs: list[int]
) -> None:
    """Calls cost something else than expected; the difference is paid by those after them."""
    quota = QuotaBucket(declared={"tokens_in": limit})
    pacer, used, now = new_pacer(declared=quota.declared), 0, 0.0
    calls, most_expensive = 0, max(*costs, UNSEEN_TOKENS_IN)
    pacer.report_usage(0, 0, 0)
    for turn in range(600):
        now = turn * 0.2
        jobs = min(pacer.allowance(now) or 0, 50)
        pacer.spend(jobs, now)
        spent = sum(costs[(turn + job) % len(costs)] for job in range(jobs))
        calls, used = calls + jobs, used + spent
        pacer.report_usage(calls, used, 0)
        pacer.update(quota, now)
    in_a_burst = max(1.0, limit / 60 / min(costs))  # calls before their price is known
    assert used <= MARGIN * limit / 60 * now + min(50.0, in_a_burst) * most_expensive + limit


def test_a_job_that_did_not_leave_gives_its_place_back() -> None:
    pacer = new_pacer(declared={"requests": 60})
    assert pacer.allowance(2.0) == 1
    pacer.spend(1, 2.0)
    assert pacer.allowance(2.0) == 0
    pacer.spend(-1, 2.0)
    assert pacer.allowance(2.0) == 1


@pytest.mark.parametrize("kind", ["requests", "tokens_in", "tokens_out", "tokens"])
def test_every_kind_of_limit_holds_back(kind: str) -> None:
    assert new_pacer(declared={kind: 60}).allowance(0.5) == 0


@given(
    st.floats(1.0, 1000.0),
    st.floats(0.0, 1.0),
    st.floats(1.0, 120.0),
    st.floats(0.0, 200.0),
    st.floats(0.1, 5000.0),
)
def test_a_spent_quota_says_until_when_and_never_beyond_its_reset(
    limit: float, part: float, reset: float, age: float, cost: float
) -> None:
    quota = QuotaBucket(reading={"tokens": Left(limit, part * limit, reset)}, age_seconds=age)
    spent = quota.spent_seconds({"tokens": cost})
    assert 0 <= spent <= max(0.0, reset - age)
    if part * limit >= cost or age >= reset:
        assert spent == 0


def test_a_call_comes_back_within_its_part_of_the_minute() -> None:
    quota = QuotaBucket(reading={"requests": Left(60.0, 0.0, 60.0)}, age_seconds=0.5)
    assert quota.spent_seconds({}) == pytest.approx(1 / 0.95 - 0.5)
