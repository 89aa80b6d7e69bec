"""The window's properties."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from app.policy.window import (
    CEILING,
    LEAST_RESERVE_SECONDS,
    MOST_RESERVE_SECONDS,
    RESERVE_SECONDS,
    UNKNOWN_REFS,
    next_reserve,
    packs,
    refs_in_message,
    smoothed_rate,
    window,
)

slots = st.integers(0, 10_000)
rates = st.floats(0, 1e6)


@given(rates)
def test_nothing_goes_to_a_pool_without_slots(rate: float) -> None:
    assert window(0, rate) == 0


@given(slots.filter(bool), rates)
def test_the_window_holds_a_reserve_and_never_more_than_the_ceiling(n: int, rate: float) -> None:
    assert min(n + 1, CEILING) <= window(n, rate) <= CEILING
    assert window(n, rate) <= max(2 * n, n + 1 + math.ceil(rate * RESERVE_SECONDS))


def test_jobs_of_a_moment_have_a_round_in_reserve_and_long_ones_hardly_any() -> None:
    assert window(10, 0) == window(10, 10 / 0.1, 0.1) == 20
    assert window(50, 50 / 0.01, 0.1) == 550, "a tenth of a second, however short they are"
    assert window(10, 10 / 1.5) == 19
    assert window(10, 10 / 5) == 16
    assert window(10, 10 / 60) == 11


@given(slots, rates.filter(bool), rates.filter(bool))
def test_a_faster_pool_never_gets_a_smaller_window(n: int, a: float, b: float) -> None:
    low, high = sorted((a, b))
    assert window(n, low) <= window(n, high)


@given(st.lists(st.integers(0, 60), max_size=40))
def test_the_reserve_follows_idle_slots_and_stays_within_its_bounds(looks: list[int]) -> None:
    reserve = RESERVE_SECONDS
    for busy in looks:
        after = next_reserve(reserve, busy, 50)
        assert LEAST_RESERVE_SECONDS <= after <= MOST_RESERVE_SECONDS
        assert after >= reserve or busy > 0.95 * 50
        assert after <= reserve or busy < 0.85 * 50
        reserve = after


def test_jobs_that_never_fill_the_slots_get_half_a_second_and_those_that_do_hardly_any() -> None:
    idle = busy = RESERVE_SECONDS
    for _ in range(20):
        idle, busy = next_reserve(idle, 1, 50), next_reserve(busy, 50, 50)
    assert window(50, 3000, idle) == 1550
    assert window(50, 1000, busy) == 70


@given(st.integers(1, 500), st.floats(0, 1e6), st.floats(0, 1e6))
def test_longer_jobs_share_a_message_with_fewer(most: int, a: float, b: float) -> None:
    shorter, longer = sorted((a, b))
    assert 1 <= refs_in_message(most, longer) <= refs_in_message(most, shorter) <= most


def test_a_message_holds_a_second_of_work_and_twenty_of_the_unknown() -> None:
    assert refs_in_message(100, 0.001) == refs_in_message(100, 0.01) == 100
    assert refs_in_message(100, 0.05) == 20
    assert refs_in_message(100, 3.0) == 1
    assert refs_in_message(100, None) == UNKNOWN_REFS
    assert refs_in_message(1, None) == 1


@given(st.lists(st.integers()), st.integers(1, 50), st.integers(0, 500))
def test_packs_keep_every_item_in_order(items: list[int], most: int, n: int) -> None:
    cut = [list(pack) for pack in packs(items, most, n)]
    assert [item for pack in cut for item in pack] == items
    assert all(1 <= len(pack) <= most for pack in cut)


@given(st.integers(1, 500), st.integers(1, 50), st.integers(1, 500))
def test_packs_leave_no_worker_idle_that_could_have_work(count: int, most: int, n: int) -> None:
    assert len(list(packs(range(count), most, n))) >= min(count, n) // 2


@given(rates, st.integers(0, 10**6), st.floats(0.001, 10))
def test_a_rate_follows_rises_at_once_and_never_undershoots(
    rate: float, ended: int, seconds: float
) -> None:
    measured = ended / seconds
    after = smoothed_rate(rate, ended, seconds)
    assert after >= min(rate, measured) - 1e-6
    if measured >= rate:
        assert after == measured
