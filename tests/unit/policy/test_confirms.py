"""How long a publisher waits for confirms."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.policy.confirms import (
    MOST_OPENING_SECONDS,
    MOST_SILENT_SECONDS,
    expected_latency,
    opening_seconds,
    patience,
    silence,
)

SECONDS = st.floats(0.0, 100.0)
LONGEST = st.floats(0.01, 10.0)


@given(SECONDS, LONGEST)
def test_nobody_waits_longer_than_allowed_nor_in_vain(expected: float, longest: float) -> None:
    waited = patience(expected, longest)
    assert waited in (0.0, longest)
    assert (waited == 0.0) == (expected > longest)
    assert waited < silence(longest, expected)


@given(SECONDS, SECONDS)
def test_rise_is_followed_at_once_and_a_fall_never_beyond_it(before: float, now: float) -> None:
    after = expected_latency(before, now)
    assert after == now if now >= before else now <= after <= before


@given(SECONDS, LONGEST)
def test_publisher_waits_again_soon_after_the_broker_is_quick_again(
    slow: float, longest: float
) -> None:
    expected, confirms = slow, 0
    while not patience(expected, longest):
        expected, confirms = expected_latency(expected, longest / 10), confirms + 1
        assert confirms <= 20


@given(LONGEST, st.floats(1.01, 100.0))
def test_one_late_confirm_is_enough_not_to_wait(longest: float, times: float) -> None:
    assert patience(expected_latency(0.0, longest * times), longest) == 0.0


@given(LONGEST, SECONDS)
def test_late_broker_may_be_silent_longer_within_bounds(longest: float, measured: float) -> None:
    quick = silence(longest, 0.0)
    assert quick <= silence(longest, measured) <= max(quick, MOST_SILENT_SECONDS)
    assert silence(longest, measured) > measured or measured >= MOST_SILENT_SECONDS


@given(LONGEST, SECONDS)
def test_opening_takes_as_long_as_the_latency_needs(usual: float, measured: float) -> None:
    seconds = opening_seconds(usual, measured)
    assert usual <= seconds <= max(usual, MOST_OPENING_SECONDS)
    assert seconds > measured or measured >= MOST_OPENING_SECONDS
