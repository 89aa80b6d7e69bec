"""Where the knee is, by code: hinges with and without noise, and what a step's jobs say."""

from __future__ import annotations

import heapq
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.lab.experiment import SLOTS, Size
from loadtest.lab.knee.verdict import (
    PLANS,
    STAIRS,
    Plan,
    analyse,
    find_knee,
    judge,
    step_of,
)
from loadtest.lab.submissions import Submissions
from loadtest.shapes import arrival_times
from loadtest.users.wire import Arrival
from models.pools import POOLS

SHORT = Plan(STAIRS, 6.0, 1.0)


def hinged(capacity: float, noise: list[float]) -> list[tuple[float, float]]:
    """What a worker of this capacity scores on the stairs, a little off."""
    return [
        (rate, min(rate, capacity) * (1 + off)) for rate, off in zip(STAIRS, noise, strict=True)
    ]


noises = st.lists(st.floats(-0.01, 0.01), min_size=len(STAIRS), max_size=len(STAIRS))


@given(capacity=st.floats(0.5, 13.0), noise=noises)
def test_the_knee_is_at_the_capacity_wherever_that_is(capacity: float, noise: list[float]) -> None:
    knee = find_knee(hinged(capacity, noise))
    assert knee is not None
    # A step just below the capacity may stand on either side: both are as near.
    assert knee.at == pytest.approx(capacity, rel=0.03)
    assert knee.kept_up <= 1.03 * capacity


@given(capacity=st.floats(0.5, 13.0), noise=noises, times=st.floats(0.01, 100.0))
def test_the_knee_does_not_depend_on_the_unit_or_the_order(
    capacity: float, noise: list[float], times: float
) -> None:
    points = hinged(capacity, noise)
    knee = find_knee(points)
    larger = find_knee([(times * offered, times * scored) for offered, scored in points[::-1]])
    assert knee is not None and larger is not None
    assert larger.at == pytest.approx(times * knee.at, rel=0.02)


@given(noise=noises)
def test_stairs_that_are_kept_up_with_have_no_knee(noise: list[float]) -> None:
    assert find_knee(hinged(inf, noise)) is None
    assert find_knee([]) is None


def test_stairs_that_begin_beyond_the_capacity_have_their_knee_below_them() -> None:
    knee = find_knee([(8.0, 5.1), (10.0, 4.9)])
    assert knee is not None
    assert knee.at == pytest.approx(5.0)
    assert knee.kept_up == 0.0


def test_a_job_belongs_to_the_step_in_which_it_was_to_start() -> None:
    late = Arrival(9.9, 3.0, 202, "late")
    lost = Arrival(10.0, 0.1, 202, "lost")
    refused = Arrival(10.5, 0.2, 503, "")
    rows = [{"at": 9.9, "waiting": 0, "waiters": 0}, {"at": 10.9, "waiting": 7, "waiters": 1}]
    submissions = Submissions([late, lost, refused], {"late": 20.0}, rows)
    first = step_of(submissions, 1.0, 0.0, 10.0, 0.0)
    second = step_of(submissions, 2.0, 10.0, 20.0, 0.0)
    assert (first.jobs, first.refused, first.depth, first.waiters) == (1, 0, 0, 0)
    assert first.p50_seconds == pytest.approx(10.1)
    assert first.front_door_p95_ms == 3000.0
    assert (second.jobs, second.refused, second.depth, second.waiters) == (2, 1, 7, 1)
    # Never scored is worse than any wait; a refused one has none.
    assert second.p50_seconds == inf


def test_steps_follow_each_other_without_a_gap_and_the_warm_up_is_in_none() -> None:
    plan = Plan((2.0, 4.0), 5.0, 3.0)
    submissions = simulated(plan, begin=100.0)
    assert plan.begin(submissions) == pytest.approx(100.0)
    found = analyse(submissions, plan)
    assert [(step.offered, step.jobs) for step in found.steps] == [(2.0, 10), (4.0, 20)]
    assert found.submitted == 36


def simulated(plan: Plan, overhead: float = 0.0, begin: float = 1000.0) -> Submissions:
    """Slots that take the next queued job as soon as they are free."""
    free = [0.0] * SLOTS
    arrivals: list[Arrival] = []
    scored_at: dict[str, float] = {}
    for due in arrival_times(plan.stretches):
        intended = begin - plan.warm_seconds + due
        ended = max(intended, heapq.heappop(free)) + plan.score_seconds + overhead
        heapq.heappush(free, ended)
        arrivals.append(Arrival(intended, 0.005, 202, str(len(arrivals))))
        scored_at[arrivals[-1].id] = ended
    rows = [
        {
            "at": begin + second,
            "waiters": 0,
            "waiting": sum(
                each.intended_at <= begin + second < scored_at[each.id] - plan.score_seconds
                for each in arrivals
            ),
        }
        for second in range(round(plan.load_seconds))
    ]
    return Submissions(arrivals, scored_at, rows)


def test_slots_without_any_overhead_reach_the_bar_and_the_queue_grows_beyond_the_knee() -> None:
    found = analyse(simulated(SHORT), SHORT)
    assert found.knee is not None and found.knee.kept_up == 6.6
    assert found.plateau == pytest.approx(SHORT.capacity, rel=0.005)
    depths = [step.depth for step in found.steps]
    assert depths[:3] == [0, 0, 0]
    assert depths[4:] == sorted(depths[4:]) and depths[-1] > 80
    assert found.steps[-1].p99_seconds > 10 * found.steps[0].p99_seconds
    assert judge(found, SHORT).passed


def test_slots_that_lose_two_percent_of_their_time_miss_the_bar() -> None:
    report = judge(analyse(simulated(SHORT, overhead=0.03), SHORT), SHORT)
    assert [bar.passed for bar in report.bars] == [False, True, True, True, True, True]


def test_waits_below_the_knee_are_judged_by_the_objective_of_the_pool() -> None:
    late = judge(analyse(simulated(SHORT, overhead=0.2), SHORT), SHORT)
    (bar,) = [bar for bar in late.bars if "objective" in bar.claim]
    assert bar.required == POOLS["medium"].objective_seconds
    assert 0.2 <= bar.measured < bar.required
    later = judge(analyse(simulated(SHORT, overhead=5.5), SHORT), SHORT)
    assert not next(bar for bar in later.bars if "objective" in bar.claim).passed


def test_a_run_without_a_knee_is_no_pass() -> None:
    calm = Plan((1.0, 2.0), 6.0, 1.0)
    report = judge(analyse(simulated(calm), calm), calm)
    assert "No knee" in report.findings[0]
    assert not report.passed


def test_a_quick_run_stays_under_its_three_minutes() -> None:
    quick = PLANS[Size.QUICK]
    assert quick.rates == PLANS[Size.FULL].rates == STAIRS
    assert quick.load_seconds + quick.drain_seconds < 120
