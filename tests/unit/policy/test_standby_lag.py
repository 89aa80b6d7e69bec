"""The lag of a standby: never below the truth, and small while nothing is written."""

from __future__ import annotations

import math
from itertools import accumulate

from hypothesis import given
from hypothesis import strategies as st

from app.policy.standby_lag import LogSample, lag_seconds

STEPS = st.lists(st.tuples(st.integers(1, 10), st.integers(0, 1000)), min_size=1, max_size=20)


def samples_of(steps: list[tuple[int, int]]) -> list[LogSample]:
    times = accumulate(seconds for seconds, _ in steps)
    positions = accumulate(written for _, written in steps)
    return [LogSample(*pair) for pair in zip(times, positions, strict=True)]


@given(STEPS, st.integers(0, 20_000), st.integers(0, 100))
def test_everything_that_is_older_than_the_lag_is_shown(
    steps: list[tuple[int, int]], position: int, later: int
) -> None:
    samples = samples_of(steps)
    now = samples[-1].at + later
    lag = lag_seconds(samples, position, now)
    assert lag >= later
    for sample in samples:
        if sample.at <= now - lag:
            assert sample.position <= position


@given(STEPS, st.integers(0, 100))
def test_who_has_all_of_the_last_sample_lags_by_its_age(
    steps: list[tuple[int, int]], later: int
) -> None:
    samples = samples_of(steps)
    now = samples[-1].at + later
    assert lag_seconds(samples, samples[-1].position, now) == now - samples[-1].at


@given(STEPS, st.integers(0, 20_000), st.integers(0, 1000))
def test_who_has_more_lags_less(steps: list[tuple[int, int]], position: int, more: int) -> None:
    samples, now = samples_of(steps), 1000.0
    assert lag_seconds(samples, position + more, now) <= lag_seconds(samples, position, now)


def test_what_is_not_known_is_not_near() -> None:
    assert lag_seconds([], 7, 1.0) == math.inf
    assert lag_seconds([LogSample(0.5, 8)], 7, 1.0) == math.inf
    assert lag_seconds([LogSample(0.5, 8)], None, 1.0) == math.inf


@given(STEPS, st.integers(0, 20_000))
def test_a_position_in_another_log_says_nothing(
    steps: list[tuple[int, int]], position: int
) -> None:
    samples = [sample._replace(history="ours") for sample in samples_of(steps)]
    assert lag_seconds(samples, position, 1000.0, "another") == math.inf
