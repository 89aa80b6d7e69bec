"""One load of clients on one Fairline, and what was measured meanwhile.

The API is not asked for its own figures here: that request would wait in the queue that it asks
about. Connections are counted in the kernel's tables, queued jobs in the database.
"""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import psutil
from sqlalchemy import Engine

from loadtest.figures import CoreMeter
from loadtest.fleet import Fairline
from loadtest.generator import Order
from loadtest.lab.experiment import QueueGauges, Row, RunContext
from loadtest.lab.swarm.analysis import (
    GENERATOR,
    Counts,
    Look,
    Second,
    Summary,
    by_second,
    count,
    cpu_split,
    mean_cores,
    server_cores,
    summarise,
)
from loadtest.shapes import Stretch, highest, level_at, total_seconds
from loadtest.users.wire import Requests

POOL = "medium"


@dataclass(frozen=True)
class Stage:
    """A load and what was measured of it."""

    name: str
    stretches: Sequence[Stretch]
    requests: Requests
    #: Cores in use, interval by interval, in seconds since the epoch.
    looks: Sequence[Look]
    #: The gauges of each second.
    rows: Sequence[Row]
    #: Connections that the API held, the most at any reading.
    connections: int
    #: The part that is judged, in seconds since the first request.
    judged: tuple[float, float] = (0.0, 0.0)

    @property
    def clients(self) -> int:
        """How many there were in the end."""
        return round(highest(self.stretches))

    @property
    def begin(self) -> float:
        """When the first client sent its first request, in seconds since the epoch."""
        return min(self.requests.at, default=0.0)

    @cached_property
    def seconds(self) -> list[Second]:
        """Every second of the load."""
        return by_second(self.requests, self.begin, math.floor(total_seconds(self.stretches)))

    @cached_property
    def counts(self) -> Counts:
        return count(self.requests)

    @cached_property
    def summary(self) -> Summary:
        """Of the part that is judged."""
        return summarise(self.requests, self.begin, *self.judged)

    @cached_property
    def split(self) -> dict[str, float]:
        """Cores by part, in the part that is judged."""
        begin, end = (self.begin + at for at in self.judged)
        return cpu_split(mean_cores(self.looks, begin, end))

    @property
    def server_cores(self) -> float:
        return server_cores(self.split)

    @property
    def errors(self) -> str:
        return errors_by_status(self) or "none"

    def clients_by_second(self) -> list[float]:
        """How many there should be, second by second, and at the end."""
        levels = [level_at(self.stretches, n) for n in range(len(self.seconds))]
        return [*levels, self.clients]

    def connections_by_second(self) -> list[tuple[float, float]]:
        """When connections were counted, and how many there were."""
        read = [(float(row["at"]) - self.begin, float(row["connections"])) for row in self.rows]
        return [(at, held) for at, held in read if 0 <= at <= len(self.seconds)] or [(0.0, 0.0)]


def errors_by_status(*stages: Stage) -> str:
    """Errors by kind: ``12 × 503, 3 × no answer``."""
    kinds: dict[int, int] = {}
    for each in stages:
        for status, number in each.counts.errors.items():
            kinds[status] = kinds.get(status, 0) + number
    return ", ".join(
        f"{number:,} × {status or 'no answer'}" for status, number in sorted(kinds.items())
    )


class Serving:
    """A Fairline without clients so far."""

    def __init__(self, fairline: Fairline) -> None:
        self.fairline = fairline
        api = psutil.Process(fairline.fleet.children["api"].pid)
        #: Files that each process of its API has open when it has no clients.
        self.idle_files = {child.pid: open_files(child.pid) for child in api.children()}

    def connections(self) -> int:
        """Connections of clients. The kernel also counts those that are not accepted yet, the
        API's open files also those to its own services."""
        files = sum(open_files(pid) - idle for pid, idle in self.idle_files.items())
        return max(0, min(files, established(self.fairline.port)))


class StageGauges:
    """Connections and the queue, once per second, and every few seconds the cores in use."""

    def __init__(
        self, serving: Serving, engine: Engine, generator: Sequence[int], look_seconds: float
    ) -> None:
        self._serving = serving
        self._generator = generator
        self._look_seconds = look_seconds
        self._queue = QueueGauges(engine, POOL)
        self._meter = CoreMeter({**serving.fairline.fleet.pids(), GENERATOR: generator})
        self.looks: list[Look] = []
        #: Connections that the API held, the most at any reading.
        self.connections = 0

    def __call__(self) -> Mapping[str, float]:
        held = self._serving.connections()
        self.connections = max(self.connections, held)
        if time.time() - self._meter.at >= self._look_seconds:
            self._look()
        return {"connections": held, **self._queue()}

    def _look(self) -> None:
        """Cores in use since the last time."""
        begin, cores = self._meter.at, self._meter.read()
        # A process that has ended can no longer be read, as if it had used no time.
        if all(map(psutil.pid_exists, self._generator)):
            self.looks.append(Look(begin, self._meter.at, cores))


def hold(
    context: RunContext,
    serving: Serving,
    name: str,
    step: str,
    stretches: Sequence[Stretch],
    look_seconds: float,
) -> Stage:
    """Run so many clients, and measure."""
    order = Order(serving.fairline.url, "SwarmClient", stretches)
    with serving.fairline.engine() as engine, context.generate(order) as generator:
        gauges = StageGauges(serving, engine, generator.pids, look_seconds)
        with context.watch(step, gauges) as sampler:
            while not generator.is_over():
                time.sleep(0.1)
        record = generator.finish()
    # A client that had to connect again may be counted twice for a moment.
    most = min(gauges.connections, round(highest(stretches)))
    return Stage(name, stretches, record.requests, gauges.looks, sampler.rows, most)


def open_files(pid: int) -> int:
    with suppress(OSError):
        return len(os.listdir(f"/proc/{pid}/fd"))
    return 0


def established(port: int) -> int:
    """Established connections to this port, by the kernel's table (IPv4)."""
    table = Path("/proc/net/tcp").read_bytes()
    return len(re.findall(rb":%04X [0-9A-F]{8}:[0-9A-F]{4} 01 " % port, table))
