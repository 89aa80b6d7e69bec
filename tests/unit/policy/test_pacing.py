"""Promotion: due jobs join the queue without a stampede and without starving."""

from __future__ import annotations

import math
from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.policy.pacing import MOST_SECONDS, RESERVE_SECONDS, Pace, allowance

queues = st.integers(0, 10**6)
slots = st.integers(0, 10_000)
rates = st.floats(0, 1e5)
turns = st.floats(0, 3600)
limits = st.floats(1, 1e5)


def floor_per_second(n: int, ended: float) -> float:
    return max(ended / 2, max(n, 1) / 60)


@given(queues, slots, rates, turns, limits)
def test_an_allowance_is_never_negative_and_never_above_the_limit(
    queued: int, n: int, ended: float, seconds: float, limit: float
) -> None:
    allowed = allowance(
        queued=queued, slots=n, ended_per_second=ended, seconds=seconds, per_second=limit
    )
    assert 0 <= allowed <= limit * min(seconds, MOST_SECONDS)


@given(queues, queues, slots, rates, turns, limits)
def test_a_longer_line_never_lets_more_jobs_join(
    a: int, b: int, n: int, ended: float, seconds: float, limit: float
) -> None:
    shorter, longer = (
        allowance(queued=q, slots=n, ended_per_second=ended, seconds=seconds, per_second=limit)
        for q in sorted((a, b))
    )
    assert longer <= shorter


@given(queues, slots, rates, st.floats(0, MOST_SECONDS), limits)
def test_behind_a_long_line_due_jobs_keep_half_of_the_pools_speed(
    queued: int, n: int, ended: float, seconds: float, limit: float
) -> None:
    allowed = allowance(
        queued=queued, slots=n, ended_per_second=ended, seconds=seconds, per_second=limit
    )
    assert allowed >= min(floor_per_second(n, ended), limit) * seconds * (1 - 1e-9)


@given(queues, slots, rates, st.floats(0, MOST_SECONDS))
def test_beyond_that_due_jobs_only_fill_the_line_that_keeps_the_pool_busy(
    queued: int, n: int, ended: float, seconds: float
) -> None:
    allowed = allowance(
        queued=queued, slots=n, ended_per_second=ended, seconds=seconds, per_second=1e9
    )
    busy = max(n, 1, ended * (RESERVE_SECONDS + seconds))
    floor = floor_per_second(n, ended) * seconds
    assert allowed <= floor * (1 + 1e-9) or queued + allowed <= busy * (1 + 1e-9)


@given(limits, st.lists(st.tuples(queues, slots, rates, st.floats(0, 0.5)), max_size=50))
def test_whole_jobs_follow_the_allowance_and_lose_no_fraction(
    limit: float, many: list[tuple[int, int, float, float]]
) -> None:
    pace, joined, exact = Pace(limit), 0, 0.0
    for queued, n, ended, seconds in many:
        whole, pace = pace.turn(queued=queued, slots=n, ended_per_second=ended, seconds=seconds)
        joined += whole
        exact += allowance(
            queued=queued, slots=n, ended_per_second=ended, seconds=seconds, per_second=limit
        )
        assert whole >= 0
        assert 0 <= pace.carried < 1
    assert joined == pytest.approx(exact - pace.carried, rel=1e-6, abs=1e-6)


@given(st.floats(0.05, MOST_SECONDS), queues)
def test_the_shortest_turns_and_the_longest_queue_starve_nobody(seconds: float, queue: int) -> None:
    pace, joined = Pace(per_second=1000.0), 0
    for _ in range(math.ceil(61 / seconds)):
        whole, pace = pace.turn(queued=queue, slots=0, ended_per_second=0, seconds=seconds)
        joined += whole
    assert joined >= 1


@pytest.mark.parametrize("seconds", [0.02, 0.1, 0.5])
@pytest.mark.parametrize(("n", "speed"), [(50, 2000.0), (10, 4.0), (2, 0.1), (400, 20_000.0)])
def test_a_stampede_keeps_the_pool_busy_and_forms_no_line(
    n: int, speed: float, seconds: float
) -> None:
    """A pool that can end ``speed`` jobs a second, idle until any number are due at once."""
    pace, queued, could, longest = Pace(per_second=1e5), 0, 0.0, 0
    ended, lately = 0, deque([0], maxlen=int(2 / seconds))
    for turn in range(int(120 / seconds)):
        rate = sum(lately) / (len(lately) * seconds)
        joined, pace = pace.turn(queued=queued, slots=n, ended_per_second=rate, seconds=seconds)
        queued += joined
        longest = max(longest, queued)
        could += speed * seconds
        lately.append(min(queued, int(could)))
        queued, could = queued - lately[-1], could - int(could)
        ended += lately[-1] if turn >= 60 / seconds else 0
    assert ended >= 0.95 * speed * 60 - 1
    assert longest <= 2 * n + 1.1 * speed * (RESERVE_SECONDS + seconds)
