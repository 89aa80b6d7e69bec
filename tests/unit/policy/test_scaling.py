"""How many workers a pool should have."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from app.policy.scaling import (
    PoolReading,
    ScalingDecision,
    ScalingPolicy,
    ScalingState,
    decide,
    policy_of,
)

MEDIUM = ScalingPolicy()
SHORT = policy_of("short", {}, {}, {})
LONG = policy_of("long", {}, {}, {})
IDLE = PoolReading(0, 0.0, running=0, in_flight=0, slots=10, slots_each=10)
FULL = PoolReading(20, 6.0, running=10, in_flight=20, slots=10, slots_each=10)
NOW = 1_000_000.0

policies = st.builds(
    lambda least, more, headroom, up: ScalingPolicy(
        least=least, most=least + more, headroom=headroom, low=0.6 * (1 - headroom), up_seconds=up
    ),
    st.integers(0, 5),
    st.integers(0, 20),
    st.sampled_from([0.0, 0.2]),
    st.sampled_from([5.0, 60.0]),
)
moments = st.none() | st.floats(NOW - 4000, NOW)
standings = st.builds(ScalingState, st.integers(0, 30), moments, moments, moments)


@st.composite
def readings(draw: st.DrawFn) -> PoolReading:
    each = draw(st.sampled_from([1, 2, 10, 50]))
    slots = draw(st.integers(0, 20)) * each
    running = draw(st.integers(0, slots))
    return PoolReading(
        depth=draw(st.integers(0, 10_000)),
        oldest_seconds=draw(st.floats(0, 10_000)),
        running=running,
        in_flight=running + draw(st.integers(0, slots + each)),
        slots=slots,
        slots_each=each,
        ended_per_second=draw(st.sampled_from([0.0, 0.1, 3.0, 1000.0])),
    )


def after(
    reading: PoolReading, standing: ScalingState, policy: ScalingPolicy, seconds: int
) -> ScalingDecision:
    """The same reading for so long; the last word."""
    decision = decide(reading, standing, policy, NOW)
    for second in range(1, seconds + 1):
        decision = decide(reading, decision.state, policy, NOW + second)
    return decision


def test_a_short_wait_moves_nothing() -> None:
    reading = replace(FULL, oldest_seconds=5.0)
    assert decide(reading, ScalingState(1), MEDIUM, NOW).workers == 1


def test_a_wait_beyond_five_seconds_adds_what_the_line_needs() -> None:
    decision = decide(FULL, ScalingState(1), MEDIUM, NOW)
    assert decision.workers == 3
    assert decision.reason == "the oldest of 20 waits 6 s"


def test_jobs_that_end_soon_need_fewer_slots_than_there_are_of_them() -> None:
    quick = replace(FULL, depth=40, ended_per_second=20.0)  # half a second each
    assert decide(quick, ScalingState(1), MEDIUM, NOW).workers == 2


def test_one_step_at_most_doubles_and_adds_one() -> None:
    assert decide(replace(FULL, depth=10_000), ScalingState(1), MEDIUM, NOW).workers == 3


def test_who_is_on_the_way_must_show_up_before_more_are_asked_for() -> None:
    wave = replace(FULL, depth=10_000, oldest_seconds=90.0)
    asked = decide(wave, ScalingState(1), MEDIUM, NOW)
    waiting = after(wave, asked.state, MEDIUM, 600)
    assert waiting.workers == 3
    assert "asked for, not there yet" in waiting.reason
    there = replace(wave, slots=30, running=30, in_flight=60)
    assert decide(there, waiting.state, MEDIUM, NOW + 601).workers == 7


def test_a_step_has_time_to_work_before_the_next() -> None:
    there = replace(FULL, depth=10_000, slots=30, running=30, in_flight=60)
    standing = ScalingState(3, changed_at=NOW - 9)
    assert decide(there, standing, MEDIUM, NOW).workers == 3
    assert decide(there, standing, MEDIUM, NOW + 1).workers == 7


def test_long_jobs_may_wait_a_minute() -> None:
    reading = PoolReading(4, 59.0, running=2, in_flight=4, slots=2, slots_each=2)
    assert decide(reading, ScalingState(1), LONG, NOW).workers == 1
    assert decide(replace(reading, oldest_seconds=61.0), ScalingState(1), LONG, NOW).workers == 3


def test_while_slots_are_free_nobody_waits_for_one() -> None:
    parked = replace(FULL, oldest_seconds=900.0, running=3, in_flight=9)
    assert decide(parked, ScalingState(1), MEDIUM, NOW).workers == 1


def test_a_pool_without_workers_asks_for_one_and_then_waits_for_it() -> None:
    nobody = PoolReading(500, 30.0, running=0, in_flight=0, slots=0, slots_each=10)
    policy = replace(MEDIUM, least=0)
    assert after(nobody, ScalingState(0), policy, 600).workers == 1


def test_five_quiet_minutes_cost_one_worker_and_no_more() -> None:
    idle = replace(IDLE, slots=40)
    assert after(idle, ScalingState(4), MEDIUM, 299).workers == 4
    less = after(idle, ScalingState(4), MEDIUM, 300)
    assert (less.workers, less.reason) == (3, "quiet for 300 s")
    assert after(idle, less.state, MEDIUM, 299).workers == 3


def test_long_workers_stay_for_half_an_hour() -> None:
    idle = replace(IDLE, slots=4, slots_each=2)
    assert after(idle, ScalingState(2), LONG, 1799).workers == 2
    assert after(idle, ScalingState(2), LONG, 1800).workers == 1


@pytest.mark.parametrize("noise", [{"oldest_seconds": 1.0, "depth": 1}, {"running": 13}])
def test_one_busy_second_begins_the_quiet_anew(noise: dict[str, float]) -> None:
    idle = replace(IDLE, slots=30)
    quiet = after(idle, ScalingState(3), MEDIUM, 200)
    busy = decide(replace(idle, **noise), quiet.state, MEDIUM, NOW + 201)
    assert busy.state.quiet_since is None


def test_short_keeps_a_fifth_of_its_slots_warm() -> None:
    reading = PoolReading(0, 0.0, running=41, in_flight=41, slots=50, slots_each=50)
    assert after(reading, ScalingState(1), SHORT, 4).workers == 1
    assert after(reading, ScalingState(1), SHORT, 5).workers == 2
    assert after(replace(reading, running=40), ScalingState(1), SHORT, 60).workers == 1


def test_what_the_operator_wants_otherwise_is_taken_or_refused_by_name() -> None:
    policy = policy_of("long", {"long": 9}, {}, {"long": {"quiet_seconds": 3}})
    assert (policy.least, policy.most, policy.quiet_seconds, policy.up_seconds) == (9, 9, 3, 60)
    with pytest.raises(ValueError, match=r"medium: most, speed cannot"):
        policy_of("medium", {}, {}, {"medium": {"speed": 1, "most": 3}})
    with pytest.raises(ValueError, match="minimum of -1 workers is negative"):
        policy_of("medium", {"medium": -1}, {}, {})
    with pytest.raises(ValueError, match="minimum of 3 workers is above the maximum of 2"):
        policy_of("medium", {"medium": 3}, {"medium": 2}, {})


@given(readings(), standings, policies)
def test_never_below_the_least_nor_above_the_most(
    reading: PoolReading, standing: ScalingState, policy: ScalingPolicy
) -> None:
    decision = decide(reading, standing, policy, NOW)
    assert policy.least <= decision.workers <= policy.most
    assert decision.state.workers == decision.workers


@given(readings(), standings, policies)
def test_never_down_while_anything_waits(
    reading: PoolReading, standing: ScalingState, policy: ScalingPolicy
) -> None:
    within = replace(standing, workers=min(max(standing.workers, policy.least), policy.most))
    decision = decide(replace(reading, depth=max(1, reading.depth)), within, policy, NOW)
    assert decision.workers >= within.workers


@given(readings(), standings, policies, st.integers(0, 10_000))
def test_a_longer_line_never_asks_for_fewer_workers(
    reading: PoolReading, standing: ScalingState, policy: ScalingPolicy, more: int
) -> None:
    longer = replace(reading, depth=reading.depth + more)
    assert (
        decide(longer, standing, policy, NOW).workers
        >= decide(reading, standing, policy, NOW).workers
    )


@given(readings(), standings, policies)
def test_a_step_down_is_one_worker(
    reading: PoolReading, standing: ScalingState, policy: ScalingPolicy
) -> None:
    decision = decide(reading, standing, policy, NOW)
    if standing.workers <= policy.most:
        assert decision.workers >= standing.workers - 1


def simulate(
    policy: ScalingPolicy, *, each: int, arrivals: int, job_seconds: int, lag: int
) -> list[int]:
    """Workers wanted at each second of an hour and a half under a constant load."""
    wanted, standing = [], ScalingState(max(1, policy.least))
    coming: deque[int] = deque([standing.workers] * lag, maxlen=lag)
    line: deque[int] = deque()
    ends: deque[int] = deque()
    for second in range(5400):
        living = min(coming[0], standing.workers)
        while ends and ends[0] <= second:
            ends.popleft()
        line.extend([second] * arrivals)
        while line and len(ends) < living * each:
            line.popleft()
            ends.append(second + job_seconds)
        oldest = float(second - line[0]) if line else 0.0
        reading = PoolReading(
            len(line),
            oldest,
            running=min(len(ends), living * each),
            in_flight=len(ends),
            slots=living * each,
            slots_each=each,
            ended_per_second=float(len(ends)) / job_seconds,
        )
        standing = decide(reading, standing, policy, float(second)).state
        coming.append(standing.workers)
        wanted.append(standing.workers)
    return wanted


@settings(max_examples=25)
@given(
    headroom=st.sampled_from([0.0, 0.2]),
    each=st.sampled_from([2, 10, 50]),
    load=st.floats(0.0, 14.0),
    job_seconds=st.integers(1, 30),
    lag=st.integers(1, 40),
)
def test_a_constant_load_moves_up_then_down_and_never_up_again(
    headroom: float, each: int, load: float, job_seconds: int, lag: int
) -> None:
    policy = ScalingPolicy(most=20, headroom=headroom, low=0.6 * (1 - headroom))
    arrivals = round(load * each / job_seconds)
    needed = arrivals * job_seconds / each
    wanted = simulate(policy, each=each, arrivals=arrivals, job_seconds=job_seconds, lag=lag)
    moves = [after - before for before, after in pairwise(wanted) if after != before]
    first_down = next((n for n, move in enumerate(moves) if move < 0), len(moves))
    assert all(move < 0 for move in moves[first_down:]), "up again after it went down"
    assert wanted[-1] >= min(policy.most, math.ceil(needed))
