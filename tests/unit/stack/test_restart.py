"""The delays before a process that died is started again."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from app.stack.home import Home
from app.stack.spec import ProcessSpec
from app.stack.supervisor import (
    HEALTHY_SECONDS,
    LONGEST_DELAY_SECONDS,
    Program,
    Supervisor,
    restart_delay,
)


def test_first_death_is_answered_almost_at_once() -> None:
    assert restart_delay(0) < 1


def test_early_deaths_in_a_row_wait_longer_each_time_up_to_the_cap() -> None:
    delays = [restart_delay(deaths) for deaths in range(10)]
    assert delays == sorted(delays)
    assert delays[:4] == [0.1, 0.5, 1.0, 2.0]
    assert delays[-1] == LONGEST_DELAY_SECONDS


def test_a_healthy_life_starts_a_new_count(tmp_path: Path) -> None:
    supervisor = Supervisor(Home(tmp_path), {})
    supervisor.add(Program("api", lambda _: ProcessSpec("api", ("true",)), 0))
    [slot] = supervisor.slots
    for lived_seconds, deaths in ((0.1, 1), (0.1, 2), (HEALTHY_SECONDS, 1)):
        supervisor._schedule_restart(slot, lived_seconds)
        assert slot.deaths_in_a_row == deaths


@given(st.integers(0, 10**9))
def test_delay_is_always_positive_and_bounded(deaths: int) -> None:
    assert 0 < restart_delay(deaths) <= LONGEST_DELAY_SECONDS
