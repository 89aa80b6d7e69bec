"""When a scheduler that found no work looks again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.policy.idling import EXPECTED_SECONDS, LONG_SECONDS, SHORT_SECONDS, pause_seconds
from models.wakeups import SEND_SECONDS

SECONDS = st.floats(-1e6, 1e6)
DUE = st.none() | SECONDS


@given(st.booleans(), SECONDS, DUE)
def test_a_pause_is_never_shorter_or_longer_than_the_bounds(
    hears: bool, quiet: float, due: float | None
) -> None:
    pause = pause_seconds(hears=hears, quiet_seconds=quiet, due_in_seconds=due)
    assert SHORT_SECONDS <= pause <= LONG_SECONDS


@given(st.booleans(), SECONDS, SECONDS)
def test_what_is_due_by_itself_waits_for_a_short_interval_at_most(
    hears: bool, quiet: float, due: float
) -> None:
    pause = pause_seconds(hears=hears, quiet_seconds=quiet, due_in_seconds=due)
    assert pause <= max(due, 0.0) + SHORT_SECONDS


@given(SECONDS, DUE)
def test_who_would_not_hear_a_wakeup_looks_at_short_intervals(
    quiet: float, due: float | None
) -> None:
    assert pause_seconds(hears=False, quiet_seconds=quiet, due_in_seconds=due) == SHORT_SECONDS


@given(st.floats(0, EXPECTED_SECONDS, exclude_max=True), DUE)
def test_after_a_wakeup_it_looks_at_short_intervals_for_a_while(
    quiet: float, due: float | None
) -> None:
    assert pause_seconds(hears=True, quiet_seconds=quiet, due_in_seconds=due) == SHORT_SECONDS


def test_work_is_expected_until_the_next_wakeup_can_come() -> None:
    # What a process creates between two wakeups is seen at a short interval.
    assert EXPECTED_SECONDS > 2 * SEND_SECONDS
