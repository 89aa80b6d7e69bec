"""Workers against the ideal: what the counts of the load lab come to."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.lab.experiment import SLOTS, Size, experiment
from loadtest.lab.scaling import PLANS, Count, judge, per_worker

FULL = PLANS[Size.FULL]


def counts(share: float = 1.0, **changes: int) -> list[Count]:
    return [
        replace(
            Count(n, share * n * FULL.ideal, n * FULL.ideal, 20 * SLOTS * n, 0, 0.2 * n, 0.1 * n),
            **changes,
        )
        for n in FULL.workers
    ]


@given(st.lists(st.tuples(st.integers(1, 64), st.floats(0.0, 100.0)), min_size=1))
def test_what_a_worker_adds_lies_between_the_worst_and_the_best_count(
    measured: list[tuple[int, float]],
) -> None:
    each = [rate / workers for workers, rate in measured]
    assert min(each) - 1e-9 <= per_worker(measured) <= max(each) + 1e-9


@given(st.floats(0.1, 100.0), st.sets(st.integers(1, 64), min_size=1))
def test_counts_on_a_line_give_its_slope(slope: float, workers: set[int]) -> None:
    assert per_worker([(n, slope * n) for n in workers]) == pytest.approx(slope)


def test_nothing_measured_adds_nothing() -> None:
    assert per_worker([]) == 0.0


def test_the_bars_are_those_of_four_and_of_eight_workers() -> None:
    assert [bar.passed for bar in judge(counts(0.991), FULL, refused=0).bars] == [True] * 5
    assert [bar.passed for bar in judge(counts(0.98), FULL, refused=0).bars[:2]] == [False, True]
    assert [bar.passed for bar in judge(counts(0.96), FULL, refused=0).bars[:2]] == [False, False]


@pytest.mark.parametrize("wrong", [{"least_waiting": 9}, {"waiters": 1}])
def test_a_line_too_short_or_a_waiter_is_no_pass(wrong: dict[str, int]) -> None:
    assert not judge(counts(**wrong), FULL, refused=0).passed


def test_a_refused_submission_is_no_pass() -> None:
    assert not judge(counts(), FULL, refused=1).passed


@pytest.mark.parametrize("size", Size)
def test_the_line_holds_more_than_all_counts_can_score(size: Size) -> None:
    plan = PLANS[size]
    assert plan.jobs > plan.ideal * sum(
        workers * (plan.seconds + plan.settle_seconds) for workers in plan.workers
    )


def test_a_quick_run_fits_into_its_share_of_ten_minutes() -> None:
    assert experiment("scaling").seconds(Size.QUICK) <= 105
    assert PLANS[Size.QUICK].workers == FULL.workers == (1, 2, 3, 4, 8)
