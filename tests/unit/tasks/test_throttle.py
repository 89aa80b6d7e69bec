"""Runaway tenants: the throttle and the alert."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.retry.guards import (
    SPIKE_BASELINE,
    SPIKE_MIN_HOURS,
    SPIKE_TIMES,
    THROTTLE_CRASHES,
    spiking,
    throttled,
)

hours = st.lists(st.integers(0, 10**7), max_size=48)


@given(st.integers(0, 100))
def test_five_crashes_throttle_and_only_none_frees(crashes: int) -> None:
    assert throttled(crashes, was=False) is (crashes >= THROTTLE_CRASHES)
    assert throttled(crashes, was=True) is (crashes > 0)
    assert throttled(crashes, was=False, limit=50) is (crashes >= 50)


@given(st.lists(st.integers(0, 10)))
def test_a_throttled_tenant_stays_so_until_a_window_without_a_crash(counts: list[int]) -> None:
    now = False
    for crashes in counts:
        before, now = now, throttled(crashes, now)
        if before and not now:
            assert crashes == 0
        if now and not before:
            assert crashes >= THROTTLE_CRASHES


@pytest.mark.parametrize(
    ("earlier", "this_hour", "alert"),
    [
        ([], 10**6, False),
        ([1000, 1000], 10**6, False),  # two hours are no habit
        ([1000, 1000, 1000], 9_999, False),
        ([1000, 1000, 1000], 10_000, True),
        ([0, 0, 0], 999, False),  # waking up is no spike …
        ([0, 0, 0], 1_000, True),  # … unless it is a big one
        ([0, 0, 3000], 10_000, True),
    ],
)
def test_ten_times_the_habit_is_a_spike(earlier: list[int], this_hour: int, alert: bool) -> None:
    assert spiking(earlier, this_hour) is alert


@given(hours, st.integers(0, 10**9))
def test_a_busier_hour_never_ends_a_spike(earlier: list[int], this_hour: int) -> None:
    assert spiking(earlier, this_hour + 1) >= spiking(earlier, this_hour)


@given(hours, st.integers(0, 10**9))
def test_an_alert_is_raised_only_far_above_habit_and_baseline(
    earlier: list[int], this_hour: int
) -> None:
    if spiking(earlier, this_hour):
        assert len(earlier) >= SPIKE_MIN_HOURS
        assert this_hour >= SPIKE_TIMES * SPIKE_BASELINE
        assert this_hour * len(earlier) >= SPIKE_TIMES * sum(earlier)


@given(st.integers(0, 10**7), st.integers(SPIKE_MIN_HOURS, 48))
def test_a_steady_tenant_never_raises_an_alert(each: int, count: int) -> None:
    assert not spiking([each] * count, each)
