"""Tests wait for a machine whose host takes its processors, and not for ever."""

from __future__ import annotations

import pytest

from tests.support.stolen_time import (
    MOST_SECONDS,
    READ_SECONDS,
    STAT,
    StolenTime,
    Ticks,
    read_ticks,
)


class Machine:
    """Two processors that are wanted all the time; of each second some part is taken."""

    def __init__(self, *taken: float) -> None:
        self.taken = taken
        self.seconds = 0.0

    def read(self) -> Ticks:
        seconds = [min(1.0, self.seconds - second) for second in range(int(self.seconds + 0.99))]
        stolen = sum(
            200 * length * self.taken[min(second, len(self.taken) - 1)]
            for second, length in enumerate(seconds)
        )
        return Ticks(int(200 * self.seconds - stolen), int(stolen))

    def pause(self, seconds: float = READ_SECONDS) -> None:
        self.seconds += seconds


def begin_test(plugin: StolenTime) -> None:
    for _ in plugin.pytest_runtest_protocol():
        pass


@pytest.mark.parametrize(
    ("taken", "waits"),
    [
        pytest.param((0.0,), 0.0, id="a machine of one's own"),
        pytest.param((0.4,), 0.0, id="a busy host"),
        pytest.param((0.9,) * 30 + (0.0,), 28.0, id="a host that takes most for half a minute"),
        pytest.param((0.9,), MOST_SECONDS, id="one that gives nothing back"),
    ],
)
def test_a_test_begins_when_the_machine_has_its_processors(
    taken: tuple[float, ...], waits: float
) -> None:
    machine = Machine(*taken)
    plugin = StolenTime(machine.read, lambda: machine.seconds, machine.pause)
    begin_test(plugin)
    assert plugin.waited == 0.0, "nothing is known yet"
    machine.pause(3.0)
    begin_test(plugin)
    assert plugin.waited == pytest.approx(waits, abs=2.0)
    begin_test(plugin)
    assert plugin.waited <= MOST_SECONDS


def test_what_linux_counts_is_read() -> None:
    if not STAT.exists():
        pytest.skip("no Linux")
    first = read_ticks()
    assert first.used > 0 and read_ticks() >= first
