"""Memory of the API's processes: read several times a second, with the kernel's own peaks."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Self

import psutil

PERIOD_SECONDS = 0.25
#: Written to ``clear_refs``: the peak begins anew, at what is resident now.
RESET_PEAK = "5"


def resident_mb(processes: Sequence[psutil.Process]) -> float:
    """Resident megabytes of all of them, as ``loadtest.memory`` has it; 0 for one that ended."""
    total = 0
    for process in processes:
        with suppress(psutil.Error):
            total += process.memory_info().rss
    return total / 1e6


def peak_mb(processes: Sequence[psutil.Process]) -> float:
    """The most that each was resident since its peak was reset, added up, in megabytes."""
    return sum(status_kb(process, "VmHWM") for process in processes) * 1024 / 1e6


def status_kb(process: psutil.Process, name: str) -> int:
    """A line of the process's status in /proc; 0 if it has ended."""
    with suppress(OSError):
        for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
            label, _, value = line.partition(":")
            if label == name:
                return int(value.split()[0])
    return 0


def reset_peaks(processes: Sequence[psutil.Process]) -> None:
    for process in processes:
        with suppress(OSError):
            Path(f"/proc/{process.pid}/clear_refs").write_text(RESET_PEAK)


class MemoryCurve:
    """Readings of memory in a thread, while the ``with`` block lasts."""

    def __init__(self, processes: Sequence[psutil.Process]) -> None:
        self._processes = processes
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="memory", daemon=True)
        #: By the monotonic clock, megabytes.
        self.points: list[tuple[float, float]] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(5)

    def _run(self) -> None:
        while not self._stop.wait(PERIOD_SECONDS):
            self.points.append((time.monotonic(), resident_mb(self._processes)))
