"""The window's properties."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from app.policy.window import (
    BATCH_SECONDS,
    CEILING,
    GRANT_SECONDS,
    LEAST_RESERVE_SECONDS,
    MOST_RESERVE_SECONDS,
    REFILL_SECONDS,
    RESERVE_SECONDS,
    UNWRITTEN_SECONDS,
    batch,
    credit_is_due,
    expected_rate,
    lane_credit,
    next_reserve,
    packs,
    refill_seconds,
    refs_in_message,
    room_to_fill,
    seconds_to_room,
    smoothed_rate,
    still_in_flight,
    window,
)
from tasks.worker.ledger import GATHER_SECONDS

slots = st.integers(0, 10_000)
rates = st.floats(0, 1e6)


@given(rates)
def test_nothing_goes_to_a_pool_without_slots(rate: float) -> None:
    assert window(0, rate) == 0


@given(slots.filter(bool), rates)
def test_the_window_holds_a_reserve_and_never_more_than_the_ceiling(n: int, rate: float) -> None:
    assert min(n + 1, CEILING) <= window(n, rate) <= CEILING
    reserve = max(2 * n, n + 1 + math.ceil(rate * RESERVE_SECONDS))
    assert window(n, rate) <= reserve + batch(rate)


def test_jobs_of_a_moment_have_a_round_in_reserve_and_long_ones_hardly_any() -> None:
    assert window(10, 0) == 20
    assert window(10, 10 / 0.1, 0.1) == 29, "and one batch of ten"
    assert window(50, 50 / 0.01, 0.1) == 550 + 499, "a tenth of a second, however short they are"
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
    assert window(50, 3000, idle) == 1550 + 299
    assert window(50, 1000, busy) == 150 + 99


@given(st.integers(1, 500), st.floats(0, 1e6), st.floats(0, 1e6))
def test_longer_jobs_share_a_message_with_fewer(most: int, a: float, b: float) -> None:
    shorter, longer = sorted((a, b))
    fewer, more = (refs_in_message(most, 10, seconds, 20) for seconds in (longer, shorter))
    assert 1 <= fewer <= more <= most


def test_a_message_holds_a_fifth_of_a_second_for_each_slot_and_twenty_of_the_unknown() -> None:
    assert refs_in_message(100, 10, 0.001, 20) == refs_in_message(100, 10, 0.02, 20) == 100
    assert refs_in_message(100, 10, 0.05, 20) == 40
    assert refs_in_message(100, 10, 0.2, 20) == 10
    assert refs_in_message(100, 10, 1.5, 20) == 1
    assert refs_in_message(100, 100, 1.5, 20) == 13
    assert refs_in_message(100, 10, None, 20) == 20
    assert refs_in_message(1, 10, None, 20) == 1


@given(st.integers(-50, 5000), st.integers(0, 10**6), rates)
def test_room_is_filled_by_the_batch_and_what_is_left_of_a_queue_at_once(
    room: int, ready: int, rate: float
) -> None:
    given = room_to_fill(room, ready, rate)
    assert given in (0, room)
    if 0 < ready <= room or room >= batch(rate):
        assert given == room
    elif room > 0 and ready:
        assert given == 0 and room < rate * BATCH_SECONDS, "a tenth of a second's endings"
        later = room + math.ceil(seconds_to_room(room, ready, rate) * rate)
        assert room_to_fill(later, ready, rate) == later


@given(slots, rates)
def test_ends_that_are_not_written_take_up_no_room(in_flight: int, rate: float) -> None:
    left = still_in_flight(in_flight, rate)
    assert 0 <= left <= in_flight
    assert in_flight - left <= rate * UNWRITTEN_SECONDS


def test_the_window_leaves_room_for_what_a_worker_gathers_before_it_writes() -> None:
    assert UNWRITTEN_SECONDS >= GATHER_SECONDS


@given(rates, slots, slots, st.none() | st.floats(0, 1e4))
def test_a_rate_is_believed_to_rise_to_what_idle_slots_can_do_and_not_far(
    rate: float, busy: int, n: int, seconds: float | None
) -> None:
    expected = expected_rate(rate, busy, n, seconds)
    assert rate <= expected <= 4 * rate
    if seconds and n:
        assert expected <= max(rate, n / seconds), "never more than the slots can do"
    if busy >= n:
        assert expected == rate, "these take longer than others of their type"


def test_a_slow_scheduler_does_not_hold_the_rate_down() -> None:
    """Each second it sends once what fits: the window grows until the slots set the pace."""
    ended = 0.0
    for _ in range(12):
        rate = expected_rate(ended, 2, 10, 0.05)
        ended = min(200.0, window(10, rate, MOST_RESERVE_SECONDS))
    assert ended >= 120, "half a second of work and a batch, once a second"


@given(st.integers(1, 500), st.floats(0.001, 0.1), st.floats(0.1, 0.5))
def test_a_newcomer_waits_for_the_reserve_and_a_batch_where_jobs_are_short(
    n: int, seconds: float, reserve: float
) -> None:
    """As docs/fair-share.md says, for work that fills the slots."""
    rate = n / seconds
    ahead = window(n, rate, reserve) - n
    assert ahead / rate <= reserve + BATCH_SECONDS + 2 / rate


@given(slots.filter(bool), rates.filter(bool))
def test_while_a_batch_gathers_the_reserve_is_still_there(n: int, rate: float) -> None:
    """Slots run out of work only if the scheduler takes longer than the reserve."""
    full = window(n, rate, 0.1)
    if full < CEILING:
        low = full - batch(rate) + 1
        assert low >= n + 1
        if n / rate <= BATCH_SECONDS:
            assert low - n >= min(rate * 0.1, CEILING // 2)


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


@given(st.integers(-1, 50), st.integers(0, 50), st.floats(0, 10))
def test_credit_is_never_too_much_and_never_short_for_long(
    credit: int, wanted: int, seconds: float
) -> None:
    due = credit_is_due(credit, wanted, seconds)
    if credit < wanted / 2 or credit >= max(1.5 * wanted, wanted + 1) or seconds >= GRANT_SECONDS:
        assert due
    elif credit != wanted:
        assert due == (seconds >= REFILL_SECONDS)
    else:
        assert not due


@given(slots, st.integers(0, 20_000), rates)
def test_credit_is_for_slots_that_are_free_or_soon_will_be(
    slots: int, in_flight: int, rate: float
) -> None:
    credit = lane_credit(slots, in_flight, rate)
    assert credit >= max(0, min(slots, CEILING) - in_flight), "every free slot can be used"
    assert in_flight + credit <= max(in_flight, slots + rate * REFILL_SECONDS)
    assert in_flight + credit <= max(in_flight, window(slots, rate))
    assert credit <= 2 * slots
    if rate == 0:
        assert credit <= slots


@given(st.integers(-1, 5000), rates)
def test_credit_lasts_until_the_next_look(credit: int, rate: float) -> None:
    seconds = refill_seconds(credit, rate)
    assert 0 < seconds <= REFILL_SECONDS
    if credit > 0:
        assert rate * seconds <= credit / 2 + 1e-6
