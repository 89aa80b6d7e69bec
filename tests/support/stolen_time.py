"""A pytest plugin: no test begins while the host of a virtual machine gives its processors away.

A test that waits for a process for a minute fails if neither has run for that long. Linux counts
what a host takes as ``steal``; it stays 0 on a machine of one's own.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

STAT = Path("/proc/stat")
#: The part of what the machine wanted to compute that may be taken.
MOST_STOLEN = 0.5
#: What is measured over less says little.
READ_SECONDS = 2.0
#: In all, of one process of a run; then its tests begin whatever is taken.
MOST_SECONDS = 600.0


class Ticks(NamedTuple):
    """Hundredths of a second of all processors since they started."""

    used: int
    stolen: int


def read_ticks() -> Ticks:
    fields = STAT.read_text().split(maxsplit=9)[1:9]
    user, nice, system, _idle, _waiting, irq, softirq, steal = map(int, fields)
    return Ticks(user + nice + system + irq + softirq, steal)


def pause() -> None:
    """Sleep, after computing for 0.1 s: steal is counted only while something wants to run."""
    until = time.monotonic() + 0.1
    while time.monotonic() < until:
        pass
    time.sleep(READ_SECONDS - 0.1)


class StolenTime:
    """Waits before a test as long as most of the machine's time is taken."""

    def __init__(
        self,
        read: Callable[[], Ticks] = read_ticks,
        clock: Callable[[], float] = time.monotonic,
        pause: Callable[[], None] = pause,
    ) -> None:
        self._read, self._clock, self._pause = read, clock, pause
        self._last, self._read_at = read(), clock()
        self.waited = 0.0

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Generator[None, Any, Any]:
        """Wait here, outside the test's own time limit."""
        while self._most_is_taken() and self.waited < MOST_SECONDS:
            self._pause()
            self.waited += READ_SECONDS
        return (yield)

    def _most_is_taken(self) -> bool:
        """Since this was asked last."""
        now = self._clock()
        if now - self._read_at < READ_SECONDS:
            return False
        last, self._last, self._read_at = self._last, self._read(), now
        stolen = self._last.stolen - last.stolen
        return stolen > MOST_STOLEN * (self._last.used - last.used + stolen)
