"""The swarm's plan, and a stage of it: requests per second, at the peak, by core. Pure."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from loadtest.figures import MACHINE, percentiles
from loadtest.lab.experiment import Row, Size
from loadtest.shapes import Stretch, highest, level_at, total_seconds
from loadtest.users.wire import POLL, ROUND, SUBMIT, Requests

#: A client has three applications and polls each once per second.
POLLS_A_SECOND = 3.0


@dataclass(frozen=True, slots=True)
class Plan:
    """One size of the experiment."""

    clients: int
    ramp_seconds: float
    hold_seconds: float
    #: The stage at half of the peak; its first seconds, while clients connect, do not count.
    half_seconds: float
    settle_seconds: float
    #: The peak is the best stretch of so many seconds.
    window_seconds: int
    #: How often CPU time is read; a reading costs a few hundredths of a second.
    look_seconds: float
    #: How long a job runs; a worker of ten slots ends ten in that time. One worker scores as
    #: much here as four that take 1.5 s per job.
    score_seconds: float
    #: Whether the second stage begins without the queue that the first one left behind.
    afresh: bool
    peak_bar: float
    p95_bar_ms: float

    def ramp(self) -> Sequence[Stretch]:
        """Up to all clients, and then all of them."""
        return (
            Stretch(self.ramp_seconds, 0, self.clients),
            Stretch(self.hold_seconds, self.clients, self.clients),
        )

    def half(self, peak: float) -> Sequence[Stretch]:
        """As many clients as send half of the peak when no response is delayed."""
        clients = min(self.clients, max(1, round(peak / 2 / POLLS_A_SECOND)))
        return (Stretch(self.half_seconds, clients, clients),)


PLANS = {
    Size.FULL: Plan(
        *(8_000, 60, 40, 40, 5, 10, 5, 0.375), afresh=True, peak_bar=3_000, p95_bar_ms=70
    ),
    Size.QUICK: Plan(
        *(1_500, 10, 10, 10, 3, 5, 2, 0.375), afresh=True, peak_bar=2_400, p95_bar_ms=100
    ),
    # Slow enough that a client polls more than once before anything changes.
    Size.MINI: Plan(*(50, 1, 4, 2, 0.5, 2, 1, 0.4), afresh=False, peak_bar=0, p95_bar_ms=1_000),
}

#: Expected responses; every other status is an error.
GOOD = frozenset({200, 202, 304})
NOT_MODIFIED = 304

GENERATOR = "generator"
OTHERS = "others"
#: The parts of a Fairline, in the order of the reports.
SERVER = ("api", "postgres", "worker", "scheduler", "rabbitmq")
PARTS = (*SERVER, GENERATOR, OTHERS)


@dataclass(frozen=True, slots=True)
class Second:
    number: int
    good: int
    errors: int
    #: Of the good responses, in milliseconds.
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class Counts:
    """All requests of a stage, counted."""

    requests: int
    submits: int
    polls: int
    not_modified: int
    #: Clients' rounds that were completed.
    rounds: int
    #: By status; 0 is a lost connection.
    errors: Mapping[int, int]

    @property
    def all_errors(self) -> int:
        return sum(self.errors.values())


@dataclass(frozen=True, slots=True)
class Summary:
    """Rate and latency of a stretch of seconds."""

    #: In seconds since the beginning of the stage.
    begin: float
    end: float
    #: Good responses per second.
    rate: float
    p50_ms: float
    p95_ms: float
    p99_ms: float


@dataclass(frozen=True, slots=True)
class Look:
    """Cores in use by part, between two moments."""

    begin: float
    end: float
    cores: Mapping[str, float]


def count(requests: Requests) -> Counts:
    kinds = Counter(requests.kind)
    sent = zip(requests.status, requests.kind, strict=True)
    statuses = Counter(status for status, kind in sent if kind != ROUND)
    return Counts(
        requests=kinds[SUBMIT] + kinds[POLL],
        submits=kinds[SUBMIT],
        polls=kinds[POLL],
        not_modified=statuses[NOT_MODIFIED],
        rounds=kinds[ROUND],
        errors={status: n for status, n in sorted(statuses.items()) if status not in GOOD},
    )


def by_second(requests: Requests, begin: float, seconds: int) -> list[Second]:
    """The responses of each second after ``begin``, by when they arrived."""
    good: list[list[float]] = [[] for _ in range(seconds)]
    errors = [0] * seconds
    for at, latency, status, kind in zip(*requests.columns(), strict=True):
        number = int(at + latency - begin)
        if kind == ROUND or at + latency < begin or number >= seconds:
            continue
        if status in GOOD:
            good[number].append(latency)
        else:
            errors[number] += 1
    return [
        Second(number, len(each), errors[number], *milliseconds(each, 0.50, 0.95))
        for number, each in enumerate(good)
    ]


def milliseconds(latencies: Sequence[float], *shares: float) -> list[float]:
    """Percentiles of latencies that are given in seconds."""
    return [1000 * each for each in percentiles(latencies, *shares)]


def summarise(requests: Requests, origin: float, begin: float, end: float) -> Summary:
    """The good responses between two moments, both in seconds since ``origin``."""
    inside = [
        latency
        for at, latency, status, kind in zip(*requests.columns(), strict=True)
        if kind != ROUND and status in GOOD and begin <= at + latency - origin < end
    ]
    rate = len(inside) / (end - begin)
    return Summary(begin, end, rate, *milliseconds(inside, 0.50, 0.95, 0.99))


def peak_of(seconds: Sequence[Second], window: int) -> tuple[int, int]:
    """The ``window`` seconds in a row with the most good responses: from, to. The first of equals.

    Clients that wait for their responses send no faster than they are served, so what follows a
    ramp is a plateau, and its best stretch is the peak. One good second is none.
    """
    window = max(1, min(window, len(seconds)))
    good = [each.good for each in seconds]
    starts = range(len(good) - window + 1)
    best = max(starts, key=lambda start: sum(good[start : start + window]))
    return best, best + window


def mean_cores(looks: Sequence[Look], begin: float, end: float) -> dict[str, float]:
    """Cores by part between two moments: each interval counts by how much of it lies there."""
    used: dict[str, float] = defaultdict(float)
    whole = 0.0
    for look in looks:
        overlap = max(0.0, min(end, look.end) - max(begin, look.begin))
        whole += overlap
        for part, cores in look.cores.items():
            used[part] += overlap * cores
    return {part: total / whole for part, total in used.items() if whole}


def cpu_split(cores: Mapping[str, float]) -> dict[str, float]:
    """Cores by `PARTS`: workers together, and other programs of the machine separately."""
    split = dict.fromkeys(PARTS, 0.0)
    for name, used in cores.items():
        part = "worker" if name.startswith("worker-") else name
        if name != MACHINE:
            split[part if part in split else OTHERS] += used
    split[OTHERS] += max(0.0, cores.get(MACHINE, 0.0) - sum(split.values()))
    return {part: round(used, 3) for part, used in split.items()}


def server_cores(split: Mapping[str, float]) -> float:
    """Cores that Fairline and its services used."""
    return sum(split[part] for part in SERVER)


def per_server_second(rate: float, split: Mapping[str, float]) -> float:
    """Responses per second of the server's CPU time: the same on a busy machine."""
    used = server_cores(split)
    return rate / used if used else 0.0


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
        return by_second(self.requests, self.begin, math.floor(total_seconds(self.stretches)))

    @cached_property
    def counts(self) -> Counts:
        return count(self.requests)

    @cached_property
    def summary(self) -> Summary:
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
        read = [(float(row["at"]) - self.begin, float(row["connections"])) for row in self.rows]
        return [(at, held) for at, held in read if 0 <= at <= len(self.seconds)] or [(0.0, 0.0)]


def errors_by_status(*stages: Stage) -> str:
    """Errors by kind: ``12 × 503, 3 × no answer``."""
    kinds = sum((Counter(each.counts.errors) for each in stages), Counter())
    return ", ".join(f"{n:,} × {status or 'no answer'}" for status, n in sorted(kinds.items()))
