"""A job type's quarantine: who enters, who leaves."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tasks.retry.circuit import Window
from tasks.retry.guards import QUARANTINE_MIN_RUNS, quarantined

windows = st.integers(0, 5000).flatmap(
    lambda total: st.builds(Window, st.just(total), st.integers(0, total))
)


@pytest.mark.parametrize(
    ("total", "bad", "enters", "stays"),
    [
        (0, 0, False, False),
        (49, 49, False, False),  # too few runs prove nothing
        (50, 12, False, False),
        (52, 13, False, True),  # a quarter: in stays in
        (50, 25, False, True),  # half is not more than half
        (50, 26, True, True),
        (50, 50, True, True),
    ],
)
def test_the_borders(total: int, bad: int, enters: bool, stays: bool) -> None:
    assert quarantined(Window(total, bad), was=False) is enters
    assert quarantined(Window(total, bad), was=True) is stays


@given(windows)
def test_whoever_would_enter_also_stays(window: Window) -> None:
    assert quarantined(window, was=True) >= quarantined(window, was=False)


@given(windows, st.booleans())
def test_one_more_failure_never_frees_a_type(window: Window, was: bool) -> None:
    worse = Window(window.total + 1, window.bad + 1)
    assert quarantined(worse, was) >= quarantined(window, was)


@given(st.integers(QUARANTINE_MIN_RUNS, 5000), st.booleans())
def test_a_type_between_the_borders_keeps_its_verdict(total: int, was: bool) -> None:
    assert quarantined(Window(total, (3 * total) // 8), was) is was


@given(st.integers(0, QUARANTINE_MIN_RUNS - 1), st.booleans())
def test_a_quarantine_ends_with_the_traffic(total: int, was: bool) -> None:
    assert not quarantined(Window(total, total), was)
