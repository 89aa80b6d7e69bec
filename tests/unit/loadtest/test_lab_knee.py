"""Where the knee is, by code: hinges with and without noise, and what a step's jobs say."""

from __future__ import annotations

import heapq
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from loadtest.lab.experiment import Size
from loadtest.lab.knee.verdict import (
    PLANS,
    SLOTS,
    STAIRS,
    Climb,
    Job,
    Plan,
    Tread,
    figures,
    find_knee,
    judge,
    see,
    treads_of,
)
from loadtest.shapes import arrival_times

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
    late = Job(intended_at=9.9, latency_seconds=3.0, accepted=True, scored_at=20.0)
    lost = Job(intended_at=10.0, latency_seconds=0.1, accepted=True, scored_at=None)
    refused = Job(intended_at=10.5, latency_seconds=0.2, accepted=False, scored_at=None)
    jobs = [late, lost, refused]
    first = figures(Tread(1.0, 0.0, 10.0), jobs, 0.0, depth=0, waiters=0)
    second = figures(Tread(2.0, 10.0, 20.0), jobs, 0.0, depth=7, waiters=1)
    assert (first.jobs, first.refused) == (1, 0)
    assert first.p50_seconds == pytest.approx(10.1)
    assert first.front_door_p95_ms == 3000.0
    assert (second.jobs, second.refused, second.depth, second.waiters) == (2, 1, 7, 1)
    # Never scored is worse than any wait; a refused one has none.
    assert second.p50_seconds == inf


def test_steps_follow_each_other_without_a_gap() -> None:
    treads = treads_of((2.0, 4.0), 5.0, 100.0)
    assert treads == [Tread(2.0, 100.0, 105.0), Tread(4.0, 105.0, 110.0)]


def simulated(plan: Plan, overhead: float = 0.0, begin: float = 1000.0) -> Climb:
    """Slots that take the next job in line as soon as they are free."""
    free = [0.0] * SLOTS
    jobs = []
    for due in arrival_times(plan.stretches):
        intended = begin - plan.warm_seconds + due
        ended = max(intended, heapq.heappop(free)) + plan.score_seconds + overhead
        heapq.heappush(free, ended)
        jobs.append(Job(intended, 0.005, True, ended))
    rows = [
        {
            "at": begin + second,
            "waiters": 0,
            "waiting": sum(
                job.intended_at <= begin + second < (job.scored_at or 0) - plan.score_seconds
                for job in jobs
            ),
        }
        for second in range(round(plan.load_seconds))
    ]
    return Climb(begin, jobs, rows)


def test_slots_without_any_overhead_reach_the_bar_and_the_line_grows_beyond_the_knee() -> None:
    sight = see(simulated(SHORT), SHORT)
    assert sight.knee is not None and sight.knee.kept_up == 6.6
    assert sight.plateau == pytest.approx(SHORT.capacity, rel=0.005)
    depths = [step.depth for step in sight.steps]
    assert depths[:3] == [0, 0, 0]
    assert depths[4:] == sorted(depths[4:]) and depths[-1] > 80
    assert sight.steps[-1].p99_seconds > 10 * sight.steps[0].p99_seconds
    assert judge(sight, SHORT).passed


def test_slots_that_lose_two_percent_of_their_time_miss_the_bar() -> None:
    report = judge(see(simulated(SHORT, overhead=0.03), SHORT), SHORT)
    assert [bar.passed for bar in report.bars] == [False, True, True, True, True]


def test_a_run_without_a_knee_is_no_pass() -> None:
    calm = Plan((1.0, 2.0), 6.0, 1.0)
    report = judge(see(simulated(calm), calm), calm)
    assert "No knee" in report.findings[0]
    assert not report.passed


def test_a_quick_run_stays_under_its_three_minutes() -> None:
    quick = PLANS[Size.QUICK]
    assert quick.rates == PLANS[Size.FULL].rates == STAIRS
    assert quick.load_seconds + quick.drain_seconds < 120
