"""What a job costs: processor time by kind of process, and bytes of WAL.

Processor time is read from the kernel's own accounts: unlike a rate, it hardly depends on what else
the machine does.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace

from loadtest.figures import MACHINE, CoreMeter
from loadtest.fleet import until
from loadtest.lab.peers.contender import Contender
from loadtest.lab.peers.turns import pulse

RABBITMQ, POSTGRES = "RabbitMQ", "PostgreSQL"
#: Kinds of processes, in the order of the reports.
KINDS = ("API", "scheduler", "workers", "Flower", RABBITMQ, POSTGRES)
#: Of the columns of `Cost.cells`.
HEADINGS = (*KINDS, "together", "WAL bytes")
#: Bytes of WAL since the server exists.
WAL = "SELECT pg_current_wal_lsn() - '0/0'::pg_lsn"
#: Clients that submit in turns, so that a slow response delays no other request.
CLIENTS = 8
#: Jobs go on arriving while the last figures are read.
SPARE_SECONDS = 1.0
STALL_SECONDS = 60.0


@dataclass(frozen=True, slots=True)
class Cost:
    """What jobs of one length cost within some seconds."""

    #: The contender's.
    name: str
    #: What a job takes.
    ms: int
    #: Jobs that were submitted per second, 0 from a full queue, and that ended.
    offered: float
    rate: float
    #: Cores in use by kind of process.
    cores: Mapping[str, float]
    #: Bytes of WAL per job.
    wal: float = 0.0
    #: Submitted jobs that never ended.
    lost: int = 0

    def of(self, *kinds: str) -> float:
        """Processor milliseconds per job in these kinds of processes."""
        used = sum(self.cores.get(kind, 0.0) for kind in kinds)
        return 1000 * used / self.rate if self.rate else 0.0

    @property
    def total(self) -> float:
        return self.of(*KINDS)

    @property
    def but_postgres(self) -> float:
        return self.of(*(kind for kind in KINDS if kind != POSTGRES))

    def per_core(self, *kinds: str) -> float:
        """Jobs per second that one core does in these kinds of processes."""
        spent = self.of(*kinds)
        return 1000 / spent if spent else 0.0

    def cells(self) -> list[str]:
        """Milliseconds per job by kind and together, and bytes of WAL."""
        parts = [f"{self.of(kind):.2f}" if kind in self.cores else "" for kind in KINDS]
        return [*parts, f"{self.total:.2f}", f"{self.wal:,.0f}"]


def typical(costs: Iterable[Cost]) -> dict[str, Cost]:
    """Of several rounds the one with the median time, by contender."""
    rounds: dict[str, list[Cost]] = defaultdict(list)
    for cost in costs:
        rounds[cost.name].append(cost)
    return {
        name: sorted(each, key=lambda cost: cost.total)[len(each) // 2]
        for name, each in rounds.items()
    }


def processes(who: Contender) -> dict[str, list[int]]:
    """The processes of a contender that run, and of the services, by kind."""
    started, services = who.fleet.children, who.fleet.pids()
    found = {
        kind: [started[name].pid for name in names if name in started]
        for kind, names in who.parts.items()
    }
    return {**found, RABBITMQ: services["rabbitmq"], POSTGRES: services["postgres"]}


def measure(who: Contender, ms: int, offered: float, seconds: float) -> Cost:
    """Read, wait, read again."""
    wal, done, began = who.read(WAL), who.count_from_now(), time.monotonic()
    meter = CoreMeter(processes(who))
    time.sleep(seconds)
    cores = meter.read()
    jobs, took = done(), time.monotonic() - began
    del cores[MACHINE]
    return Cost(who.name, ms, offered, jobs / took, cores, (who.read(WAL) - wal) / max(1, jobs))


def steady(
    who: Contender, kind: str, ms: int, rate: float, warm_seconds: float, seconds: float
) -> Cost:
    """The cost of jobs that are submitted one by one at a fixed rate; then all of them end."""
    warm = warm_seconds + ms / 1000
    count = round(rate * (warm + seconds + SPARE_SECONDS))
    requests = [who.single(kind, number, ms) for number in range(count)]
    done = who.count_from_now()
    with ThreadPoolExecutor(1) as poster:
        posted = poster.submit(pulse, who.port, requests, rate, CLIENTS)
        time.sleep(warm)
        cost = measure(who, ms, rate, seconds)
        posted.result()
    until(lambda: done() >= count, STALL_SECONDS)
    return replace(cost, lost=count - done())
