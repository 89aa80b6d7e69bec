"""One load of clients on one Fairline, and what was measured meanwhile.

The API is not asked for its own figures here: that request would wait in the queue that it asks
about. Connections are counted in the kernel's tables, queued jobs in the database.
"""

from __future__ import annotations

import re
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
from sqlalchemy import Engine

from loadtest.figures import CoreMeter
from loadtest.fleet import Fairline
from loadtest.generator import Order
from loadtest.lab.experiment import POOL, QueueGauges, RunContext
from loadtest.lab.swarm.analysis import GENERATOR, Look, Stage
from loadtest.shapes import Stretch, highest


class Serving:
    """A Fairline without clients so far."""

    def __init__(self, fairline: Fairline) -> None:
        self.fairline = fairline
        api = psutil.Process(fairline.fleet.children["api"].pid)
        #: Files that each process of its API has open when it has no clients.
        self._idle_files = {process: process.num_fds() for process in api.children()}

    def connections(self) -> int:
        """Connections of clients. The kernel also counts those that are not accepted yet, the
        API's open files also those to its own services."""
        files = sum(process.num_fds() - idle for process, idle in self._idle_files.items())
        return max(0, min(files, established(self.fairline.port)))


class StageGauges:
    """Connections and the queue, once per second, and every few seconds the cores in use."""

    def __init__(
        self, serving: Serving, engine: Engine, generator: Sequence[int], look_seconds: float
    ) -> None:
        self._serving = serving
        self._generator = generator
        self._look_seconds = look_seconds
        self._queue = QueueGauges(engine)
        self._meter = CoreMeter({**serving.fairline.fleet.pids(), GENERATOR: generator})
        self._looked_at = time.time()
        self.looks: list[Look] = []

    def __call__(self) -> Mapping[str, float]:
        held = self._serving.connections()
        if time.time() - self._looked_at >= self._look_seconds:
            self._look()
        return {"connections": held, **self._queue(pool=POOL)}

    def _look(self) -> None:
        """Cores in use since the last time."""
        begin, self._looked_at = self._looked_at, time.time()
        cores = self._meter.read()
        # A process that has ended can no longer be read, as if it had used no time.
        if all(map(psutil.pid_exists, self._generator)):
            self.looks.append(Look(begin, self._looked_at, cores))


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
            requests = generator.finish().requests
    # A client that had to connect again may be counted twice for a moment.
    most = min(int(sampler.most("connections")), round(highest(stretches)))
    return Stage(name, stretches, requests, gauges.looks, sampler.rows, most)


def established(port: int) -> int:
    """Established connections to this port, by the kernel's table (IPv4)."""
    table = Path("/proc/net/tcp").read_bytes()
    return len(re.findall(rb":%04X [0-9A-F]{8}:[0-9A-F]{4} 01 " % port, table))
