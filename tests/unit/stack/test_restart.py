"""The delays before a process that died is started again."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from app.stack.restart import LONGEST_DELAY_SECONDS, SETTLED_SECONDS, decide_restart


def test_first_death_is_answered_almost_at_once() -> None:
    assert decide_restart(lived_seconds=0.0, deaths_in_a_row=0).delay_seconds < 1


def test_early_deaths_in_a_row_wait_longer_each_time_up_to_the_cap() -> None:
    deaths, delays = 0, []
    for _ in range(10):
        decision = decide_restart(0.1, deaths)
        deaths = decision.deaths_in_a_row
        delays.append(decision.delay_seconds)
    assert delays == sorted(delays)
    assert delays[:4] == [0.1, 0.5, 1.0, 2.0]
    assert delays[-1] == LONGEST_DELAY_SECONDS


def test_a_healthy_life_starts_a_new_count() -> None:
    decision = decide_restart(SETTLED_SECONDS, deaths_in_a_row=9)
    assert decision.deaths_in_a_row == 1
    assert decision.delay_seconds < 1


@given(st.floats(0, 1e9), st.integers(0, 10**9))
def test_delay_is_always_positive_and_bounded(lived_seconds: float, deaths: int) -> None:
    assert 0 < decide_restart(lived_seconds, deaths).delay_seconds <= LONGEST_DELAY_SECONDS
