"""How large a swarm, and what its requests say: by the second, at the peak, by core. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from loadtest.figures import MACHINE, percentiles
from loadtest.lab.experiment import Size
from loadtest.shapes import Stretch
from loadtest.users.wire import POLL, ROUND, SUBMIT, Requests

#: A client has three applications and asks for each once a second.
POLLS_A_SECOND = 3.0
SLOTS = 10


@dataclass(frozen=True, slots=True)
class Plan:
    """One size of the experiment."""

    clients: int
    ramp_seconds: float
    hold_seconds: float
    #: The stage at half of the peak; its first seconds, in which the clients come, do not count.
    half_seconds: float
    settle_seconds: float
    #: The peak is the best stretch of so many seconds.
    window_seconds: int
    #: CPU is looked at so often; a look costs a few hundredths of a second.
    look_seconds: float
    #: What a job takes; a worker of ten slots ends ten in that time. One worker scores as much
    #: here as four that take 1.5 s a job.
    score_seconds: float
    #: Whether the second stage begins without the line that the first one left behind.
    afresh: bool
    peak_bar: float
    p95_bar_ms: float

    @property
    def jobs_a_second(self) -> float:
        """What the worker can score."""
        return SLOTS / self.score_seconds

    def ramp(self) -> Sequence[Stretch]:
        """Up to all clients, and then all of them."""
        return (
            Stretch(self.ramp_seconds, 0, self.clients),
            Stretch(self.hold_seconds, self.clients, self.clients),
        )

    def half(self, peak: float) -> Sequence[Stretch]:
        """As many clients as ask for half of the peak when nobody makes them wait."""
        clients = min(self.clients, max(1, round(peak / 2 / POLLS_A_SECOND)))
        return (Stretch(self.half_seconds, clients, clients),)


PLANS = {
    Size.FULL: Plan(
        *(8_000, 60, 40, 40, 5, 10, 5, 0.375), afresh=True, peak_bar=3_000, p95_bar_ms=70
    ),
    Size.QUICK: Plan(
        *(1_500, 10, 10, 10, 3, 5, 2, 0.375), afresh=True, peak_bar=2_400, p95_bar_ms=100
    ),
    # Slow enough that a client asks more than once for what has not changed.
    Size.MINI: Plan(*(50, 1, 4, 2, 0.5, 2, 1, 0.4), afresh=False, peak_bar=0, p95_bar_ms=1_000),
}

#: What a client came for; every other status is an error.
GOOD = frozenset({200, 202, 304})
NOT_MODIFIED = 304

GENERATOR = "generator"
OTHERS = "others"
#: The parts of a Fairline, in the order of the reports.
SERVER = ("api", "postgres", "worker", "scheduler", "rabbitmq")
PARTS = (*SERVER, GENERATOR, OTHERS)


@dataclass(frozen=True, slots=True)
class Second:
    """What was answered in one second."""

    number: int
    good: int
    errors: int
    #: Of the good answers, in milliseconds.
    p50_ms: float
    p95_ms: float


@dataclass(frozen=True, slots=True)
class Counts:
    """Everything that was asked for, added up."""

    requests: int
    submits: int
    polls: int
    not_modified: int
    #: Clients' rounds that came to their end.
    rounds: int
    #: By status; 0 is a lost connection.
    errors: Mapping[int, int]

    @property
    def all_errors(self) -> int:
        """All kinds together."""
        return sum(self.errors.values())


@dataclass(frozen=True, slots=True)
class Summary:
    """A stretch of seconds."""

    #: In seconds since the beginning of the stage.
    begin: float
    end: float
    #: Good answers a second.
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
    """What there was."""
    kinds: Counter[int] = Counter()
    errors: Counter[int] = Counter()
    not_modified = 0
    for status, kind in zip(requests.status, requests.kind, strict=True):
        kinds[kind] += 1
        if kind == ROUND:
            continue
        not_modified += status == NOT_MODIFIED
        if status not in GOOD:
            errors[status] += 1
    return Counts(
        requests=kinds[SUBMIT] + kinds[POLL],
        submits=kinds[SUBMIT],
        polls=kinds[POLL],
        not_modified=not_modified,
        rounds=kinds[ROUND],
        errors=dict(sorted(errors.items())),
    )


def by_second(requests: Requests, begin: float, seconds: int) -> list[Second]:
    """The answers of each second after ``begin``, by when they came."""
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
    """The good answers that came between two moments, both counted from ``origin``."""
    inside = [
        latency
        for at, latency, status, kind in zip(*requests.columns(), strict=True)
        if kind != ROUND and status in GOOD and begin <= at + latency - origin < end
    ]
    rate = len(inside) / (end - begin)
    return Summary(begin, end, rate, *milliseconds(inside, 0.50, 0.95, 0.99))


def peak_of(seconds: Sequence[Second], window: int) -> tuple[int, int]:
    """The ``window`` seconds in a row with the most good answers: from, to. The first of equals.

    Clients who wait for their answers send no faster than they are served, so what follows a
    ramp is a plateau, and its best stretch is the peak. One good second is none.
    """
    window = max(1, min(window, len(seconds)))
    best, best_sum = 0, -1
    for start in range(len(seconds) - window + 1):
        total = sum(each.good for each in seconds[start : start + window])
        if total > best_sum:
            best, best_sum = start, total
    return best, best + window


def mean_cores(looks: Sequence[Look], begin: float, end: float) -> dict[str, float]:
    """Cores by part between two moments: each look counts by how much of it lies there."""
    used: dict[str, float] = {}
    whole = 0.0
    for look in looks:
        overlap = min(end, look.end) - max(begin, look.begin)
        if overlap <= 0:
            continue
        whole += overlap
        for part, cores in look.cores.items():
            used[part] = used.get(part, 0.0) + overlap * cores
    return {part: total / whole for part, total in used.items()}


def cpu_split(cores: Mapping[str, float]) -> dict[str, float]:
    """Cores by `PARTS`: workers together, and what else ran on the machine apart."""
    split = dict.fromkeys(PARTS, 0.0)
    for name, used in cores.items():
        if name == MACHINE:
            continue
        part = "worker" if name.startswith("worker-") else name
        split[part if part in split else OTHERS] += used
    strangers = cores.get(MACHINE, 0.0) - sum(split.values())
    split[OTHERS] += max(0.0, strangers)
    return {part: round(used, 3) for part, used in split.items()}


def server_cores(split: Mapping[str, float]) -> float:
    """What Fairline and its services took."""
    return sum(split[part] for part in SERVER)


def per_server_second(rate: float, split: Mapping[str, float]) -> float:
    """Answers for each second of the server's CPU time: the same on a busy machine."""
    used = server_cores(split)
    return rate / used if used else 0.0
