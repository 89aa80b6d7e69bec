"""When a scheduler that found no work looks again."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from app.policy.idling import EXPECTED_SECONDS, LONG_SECONDS, SHORT_SECONDS, pause_seconds
from models.wakeups import SEND_SECONDS

SECONDS = st.floats(-1e6, 1e6)
DUE = st.none() | SECONDS
WITHIN = st.floats(0, math.inf)


def pause(hears: bool, quiet: float, within: float, due: float | None) -> float:
    return pause_seconds(hears=hears, quiet_seconds=quiet, look_within=within, due_in_seconds=due)


@given(st.booleans(), SECONDS, WITHIN, DUE)
def test_a_pause_is_never_shorter_or_longer_than_the_bounds(
    hears: bool, quiet: float, within: float, due: float | None
) -> None:
    assert SHORT_SECONDS <= pause(hears, quiet, within, due) <= LONG_SECONDS


@given(st.booleans(), SECONDS, WITHIN, SECONDS)
def test_what_is_due_by_itself_or_in_flight_waits_for_a_short_interval_at_most(
    hears: bool, quiet: float, within: float, due: float
) -> None:
    seconds = pause(hears, quiet, within, due)
    assert seconds <= max(due, 0.0) + SHORT_SECONDS
    assert seconds <= within + SHORT_SECONDS


@given(SECONDS, WITHIN, DUE)
def test_who_would_not_hear_a_wakeup_looks_at_short_intervals(
    quiet: float, within: float, due: float | None
) -> None:
    assert pause(False, quiet, within, due) == SHORT_SECONDS


@given(st.floats(0, EXPECTED_SECONDS, exclude_max=True), WITHIN, DUE)
def test_after_a_wakeup_it_looks_at_short_intervals_for_a_while(
    quiet: float, within: float, due: float | None
) -> None:
    assert pause(True, quiet, within, due) == SHORT_SECONDS


def test_while_jobs_are_in_flight_it_looks_as_late_as_they_allow() -> None:
    assert pause(True, 10.0, 0.2, None) == 0.2
    assert pause(True, 10.0, math.inf, None) == LONG_SECONDS


def test_work_is_expected_until_the_next_wakeup_can_come() -> None:
    # What a process creates between two wakeups is seen at a short interval.
    assert EXPECTED_SECONDS > 2 * SEND_SECONDS
