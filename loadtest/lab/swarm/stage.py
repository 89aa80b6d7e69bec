"""One load on one Fairline, and what it was seen to do meanwhile.

The API is not asked for its own figures here: the question would wait in the line that it is
about. Connections are counted by the kernel's tables, the jobs in line by the store.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import psutil
from sqlalchemy import Engine

from loadtest.figures import MACHINE, busy_seconds, cpu_seconds
from loadtest.fleet import Fairline
from loadtest.generator import Generator, Order
from loadtest.lab.experiment import Desk, LineGauges, Row
from loadtest.lab.swarm.analysis import GENERATOR, Counts, Look, Second, Summary, server_cores
from loadtest.shapes import Stretch, highest, level_at, total_seconds
from loadtest.users.wire import Requests

POOL = "medium"


@dataclass(frozen=True, slots=True)
class Stage:
    """What came of a load."""

    stretches: Sequence[Stretch]
    requests: Requests
    #: Cores in use, look by look, in seconds since the epoch.
    looks: Sequence[Look]
    #: The gauges of each second.
    rows: Sequence[Row]
    #: Connections that the API held, the most at any look.
    connections: int

    @property
    def clients(self) -> int:
        """How many there were in the end."""
        return round(highest(self.stretches))

    @property
    def seconds(self) -> float:
        """How long the load lasted."""
        return total_seconds(self.stretches)

    @property
    def begin(self) -> float:
        """When the first client asked, in seconds since the epoch."""
        return min(self.requests.at, default=0.0)


@dataclass(frozen=True, slots=True)
class Found:
    """A stage and what its figures say."""

    name: str
    stage: Stage
    seconds: list[Second]
    counts: Counts
    #: The seconds that are judged.
    summary: Summary
    #: Cores by part in these seconds.
    split: dict[str, float]

    @property
    def server_cores(self) -> float:
        """What Fairline and its services took."""
        return server_cores(self.split)

    @property
    def errors(self) -> str:
        """By kind, in words."""
        return in_words(self) or "none"

    def clients(self) -> list[float]:
        """Those that there should be, second by second, and at the end."""
        levels = [level_at(self.stage.stretches, n) for n in range(len(self.seconds))]
        return [*levels, self.stage.clients]

    def counted(self) -> list[tuple[float, float]]:
        """When connections were counted, and how many there were."""
        begin, rows = self.stage.begin, self.stage.rows
        looks = [(float(row["at"]) - begin, float(row["connections"])) for row in rows]
        return [(at, held) for at, held in looks if 0 <= at <= len(self.seconds)] or [(0.0, 0.0)]


def in_words(*stages: Found) -> str:
    """Errors by kind: ``12 × 503, 3 × no answer``."""
    kinds: dict[int, int] = {}
    for each in stages:
        for status, number in each.counts.errors.items():
            kinds[status] = kinds.get(status, 0) + number
    return ", ".join(
        f"{number:,} × {status or 'no answer'}" for status, number in sorted(kinds.items())
    )


@dataclass(frozen=True, slots=True)
class CpuClock:
    """CPU time used so far, by part.

    One reading ends a look and begins the next. On a busy machine a reading takes a tenth of a
    second; with two of them in between, parts would have more time than there was.
    """

    at: float
    seconds: Mapping[str, float]

    @classmethod
    def read(cls, parts: Mapping[str, Sequence[int]]) -> Self:
        """Now; `MACHINE` is everything that ran."""
        at = time.time()
        machine = sum(busy_seconds())
        used = {name: cpu_seconds(pids) for name, pids in parts.items()}
        return cls(at, {**used, MACHINE: machine})

    def since(self, before: CpuClock) -> dict[str, float]:
        """Cores in use between two readings."""
        span = self.at - before.at
        return {
            name: max(0.0, used - before.seconds[name]) / span
            for name, used in self.seconds.items()
        }


@dataclass(frozen=True, slots=True)
class Serving:
    """A Fairline that waits for its clients."""

    fairline: Fairline
    #: Files that each process of its API has open when it has no clients.
    idle_files: Mapping[int, int]

    @classmethod
    def of(cls, fairline: Fairline) -> Self:
        """As it is now."""
        leader = psutil.Process(fairline.fleet.children["api"].pid)
        return cls(fairline, {child.pid: open_files(child.pid) for child in leader.children()})


class Watch:
    """The gauges of a stage."""

    def __init__(
        self, serving: Serving, engine: Engine, generator: Sequence[int], look_seconds: float
    ) -> None:
        self._parts: Mapping[str, Sequence[int]] = {
            **serving.fairline.fleet.pids(),
            GENERATOR: generator,
        }
        self._look_seconds = look_seconds
        self._idle_files = serving.idle_files
        self._port = serving.fairline.port
        self._line = LineGauges(engine, POOL)
        self._before = CpuClock.read(self._parts)
        self.looks: list[Look] = []
        #: Held by the API, the most at any look.
        self.connections = 0

    def read(self) -> Mapping[str, float]:
        """Connections, the line, and now and then the cores."""
        held = self.held()
        self.connections = max(self.connections, held)
        if time.time() - self._before.at >= self._look_seconds:
            self.look()
        return {"connections": held, **self._line()}

    def held(self) -> int:
        """Connections of clients. The kernel also counts those that nobody has accepted yet, the
        API's open files also those to its own services."""
        files = sum(open_files(pid) - idle for pid, idle in self._idle_files.items())
        return max(0, min(files, established(self._port)))

    def look(self) -> None:
        """Who used the cores since the last time."""
        before, self._before = self._before, CpuClock.read(self._parts)
        if all(map(psutil.pid_exists, self._parts[GENERATOR])):
            # Of who has ended nothing can be read any more, as if no time had been used.
            self.looks.append(Look(before.at, self._before.at, self._before.since(before)))


def hold(
    desk: Desk, serving: Serving, step: str, stretches: Sequence[Stretch], look_seconds: float
) -> Stage:
    """Let so many clients loose, and watch."""
    desk.step(step)
    fairline = serving.fairline
    order = Order(fairline.url, "SwarmClient", stretches)
    with fairline.engine() as engine, Generator(order, folder_of(desk, step)) as generator:
        watch = Watch(serving, engine, generator.pids, look_seconds)
        with desk.watch(step, watch.read) as sampler:
            while not generator.is_over():
                time.sleep(0.1)
        record = generator.finish()
    # A client that had to connect again may be counted twice for a moment.
    most = min(watch.connections, round(highest(stretches)))
    return Stage(stretches, record.requests, watch.looks, sampler.rows, most)


def folder_of(desk: Desk, step: str) -> Path:
    """Where locust writes its log during a step."""
    return desk.fleet.home / "locust" / step.replace(" ", "-").replace("/", "-")


def open_files(pid: int) -> int:
    """How many a process has."""
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def established(port: int) -> int:
    """Connections to this port that stand, by the kernel's table (of the version 4 protocol)."""
    table = Path("/proc/net/tcp").read_bytes()
    return len(re.findall(rb":%04X [0-9A-F]{8}:[0-9A-F]{4} 01 " % port, table))
