"""Figures: percentiles, steady rates, cores in use, and medians of several rounds."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from statistics import linear_regression, median

import psutil


def percentile(values: Iterable[float], share: float) -> float:
    """The value below which ``share`` of the values lie; 0 if there are none."""
    return percentiles(values, share)[0]


def percentiles(values: Iterable[float], *shares: float) -> list[float]:
    ordered = sorted(values) or [0.0]
    return [ordered[min(len(ordered) - 1, int(share * len(ordered)))] for share in shares]


def steady_rate(moments: Sequence[float], begin: float, end: float) -> float:
    """Events per second between two moments: the slope of their running count.

    Slots that started together end together. Counting such bursts in a window is wrong by up to
    one burst; a line fitted through all of them is not.
    """
    inside = sorted(moment for moment in moments if begin <= moment <= end)
    if len(inside) < 2 or inside[-1] == inside[0]:
        return 0.0
    return linear_regression(inside, range(len(inside))).slope


def rolling_rate(
    moments: Sequence[float], begin: float, end: float, window_seconds: int
) -> list[tuple[float, float]]:
    """Events per second over the window before each full second: (seconds since begin, rate).

    The window should be a multiple of a job's duration, or bursts of slots show as a sawtooth.
    """
    counts = [0] * (int(end - begin) + 1)
    for moment in moments:
        second = int(moment - begin)
        if begin <= moment < end and second < len(counts):
            counts[second] += 1
    return [
        (float(second), sum(counts[max(0, second - window_seconds) : second]) / window_seconds)
        for second in range(len(counts))
    ]


#: The part for everything that ran.
MACHINE = "machine"


def family(pids: Sequence[int]) -> Iterator[psutil.Process]:
    """These processes and all that they started, as far as they are alive."""
    for pid in pids:
        with suppress(psutil.NoSuchProcess):
            leader = psutil.Process(pid)
            yield from (leader, *leader.children(recursive=True))


def cpu_seconds(pids: Sequence[int]) -> float:
    """CPU time of these processes and all that they started, the ended ones included."""
    total = 0.0
    for process in family(pids):
        with suppress(psutil.NoSuchProcess):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def tree_memory(pids: Sequence[int]) -> int:
    """Bytes in memory of these processes and all that they started: `together`."""
    members = []
    for process in family(pids):
        with suppress(psutil.NoSuchProcess):
            members.append(memory(process))
    return together(members)


def memory(process: psutil.Process) -> tuple[int, int]:
    """The resident size of a process, and the part of it that it does not share."""
    try:
        full = process.memory_full_info()
    except psutil.AccessDenied:
        resident = process.memory_info().rss
        return resident, resident
    return full.rss, full.uss


def together(members: Sequence[tuple[int, int]]) -> int:
    """The resident size of several processes, given that of each and its unshared part.

    What they share counts once, as the one that shares most has it: PostgreSQL's processes all
    show the same buffers, and a plain sum would show each new connection as a leak. Proportional
    sizes would do that too, but they move when another program loads the same libraries.
    """
    shared = max((resident - own for resident, own in members), default=0)
    return sum(own for _, own in members) + shared


def folder_bytes(folder: Path) -> int:
    total = 0
    for file in folder.rglob("*"):
        with suppress(FileNotFoundError):  # removed meanwhile, by retention
            total += file.stat().st_size if file.is_file() else 0
    return total


class CoreMeter:
    """Cores in use by part, from one reading to the next; its creation is the first.

    One reading ends an interval and begins the next. On a busy machine a reading takes a tenth
    of a second; with two of them in between, parts would have more time than there was.
    """

    def __init__(self, parts: Mapping[str, Sequence[int]]) -> None:
        self._parts = parts
        self._at = time.monotonic()
        self._used = self._cpu_seconds()

    def read(self) -> dict[str, float]:
        """Cores by part; `MACHINE` is everything that ran, other processes included."""
        seconds = time.monotonic() - self._at
        self._at += seconds
        before, self._used = self._used, self._cpu_seconds()
        return {
            name: round(max(0.0, used - before[name]) / seconds, 4)
            for name, used in self._used.items()
        }

    def _cpu_seconds(self) -> dict[str, float]:
        used = {name: cpu_seconds(pids) for name, pids in self._parts.items()}
        times = psutil.cpu_times()
        busy = times.user + times.nice + times.system + times.irq + times.softirq
        return {**used, MACHINE: busy}


@dataclass(frozen=True, slots=True)
class Sample:
    name: str
    #: Requests or jobs per second.
    rate: float
    p50_ms: float | None = None
    p99_ms: float | None = None
    #: Answers that were not the expected one.
    unexpected: int = 0
    #: Cores in use by part of the system.
    cores: dict[str, float] = field(default_factory=dict)

    @property
    def own_cores(self) -> float:
        """Cores that everything under measurement used, the generator included."""
        return sum(used for part, used in self.cores.items() if part != MACHINE)

    @property
    def strangers(self) -> float:
        """Cores that other processes used meanwhile."""
        return max(0.0, self.cores.get(MACHINE, 0.0) - self.own_cores)

    @property
    def per_core_second(self) -> float:
        """Requests or jobs per second of CPU time: the same on a busy machine."""
        return self.rate / self.own_cores if self.own_cores else 0.0


def medians(samples: Iterable[Sample]) -> dict[str, Sample]:
    """The median of each value over the rounds, by name, in order of first appearance."""
    rounds: dict[str, list[Sample]] = defaultdict(list)
    for sample in samples:
        rounds[sample.name].append(sample)
    return {name: median_of(group) for name, group in rounds.items()}


def median_of(group: list[Sample]) -> Sample:
    parts = sorted({part for sample in group for part in sample.cores})
    return Sample(
        group[0].name,
        median(sample.rate for sample in group),
        median_known(sample.p50_ms for sample in group),
        median_known(sample.p99_ms for sample in group),
        max(sample.unexpected for sample in group),
        {part: median(s.cores.get(part, 0.0) for s in group) for part in parts},
    )


def median_known(values: Iterable[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return median(known) if known else None
