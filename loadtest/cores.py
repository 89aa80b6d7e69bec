"""How the machine's cores are split among the parts of a measurement."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import suppress

import psutil

#: The part that stands for everything that ran.
MACHINE = "machine"


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of these processes and all that they started, the ended ones included."""
    total = 0.0
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            leader = psutil.Process(pid)
            for process in (leader, *leader.children(recursive=True)):
                with suppress(psutil.NoSuchProcess):
                    times = process.cpu_times()
                    total += times.user + times.system
                    total += times.children_user + times.children_system
    return total


class CoreMeter:
    """Cores in use by part, between its creation and `read`."""

    def __init__(self, parts: Mapping[str, Sequence[int]]) -> None:
        self._parts = parts
        self._before = {name: cpu_seconds(pids) for name, pids in parts.items()}
        self._machine = sum(busy_seconds())
        self._at = time.monotonic()

    def read(self) -> dict[str, float]:
        """Cores by part; `MACHINE` is everything that ran, strangers included."""
        seconds = time.monotonic() - self._at
        used = {
            name: (cpu_seconds(pids) - self._before[name]) / seconds
            for name, pids in self._parts.items()
        }
        used[MACHINE] = (sum(busy_seconds()) - self._machine) / seconds
        return {name: round(value, 2) for name, value in used.items()}


def busy_seconds() -> tuple[float, float]:
    """Time all cores spent on user and on system work."""
    times = psutil.cpu_times()
    return times.user + times.nice, times.system + times.irq + times.softirq
