"""A tenant's retry budget."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.retry.guards import BUDGET_FLOOR, budget_spent

counts = st.integers(0, 10**9)


def budget_left(first_runs: int, retries: int) -> bool:
    return not budget_spent(first_runs, retries, was=False)


@pytest.mark.parametrize(
    ("first_runs", "retries", "left"),
    [
        (0, 0, True),
        (0, 19, True),
        (0, 20, False),
        (10, 19, True),
        (10, 20, False),
        (11, 21, True),
        (11, 22, False),
        (1000, 1999, True),
        (1000, 2000, False),
    ],
)
def test_retries_stay_within_twice_the_first_runs(
    first_runs: int, retries: int, left: bool
) -> None:
    assert budget_left(first_runs, retries) is left


@given(counts, counts)
def test_more_work_never_takes_budget_and_more_retries_never_give_it(
    first_runs: int, retries: int
) -> None:
    here = budget_left(first_runs, retries)
    assert budget_left(first_runs + 1, retries) >= here >= budget_left(first_runs, retries + 1)


@given(st.integers(0, 500))
def test_a_tenant_whose_jobs_all_fail_gets_exactly_its_budget(first_runs: int) -> None:
    retries = 0
    while budget_left(first_runs, retries):
        retries += 1
    assert retries == max(BUDGET_FLOOR, 2 * first_runs)


@given(counts, counts)
def test_a_spent_budget_comes_back_later_than_it_went(first_runs: int, retries: int) -> None:
    assert budget_spent(first_runs, retries, was=True) >= budget_spent(
        first_runs, retries, was=False
    )
    assert not budget_spent(first_runs, 0, was=True), "a quiet window lifts it"
