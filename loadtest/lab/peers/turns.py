"""What is measured of a contender in its turn: accept rate, jobs a second, latency, memory."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.accept import known_polls, measure
from loadtest.baselines.witness import read_lines
from loadtest.closed_loop import Client, Load, Request
from loadtest.figures import Sample
from loadtest.fleet import NotReady, until
from loadtest.lab.experiment import Size
from loadtest.lab.peers.contender import Contender, Counter, Ours

#: Clients that post batches at the same time.
CLIENTS = 4
NAP_MS = 10
LOOK_SECONDS = 0.05
STALL_SECONDS = 60.0
#: Until the first application is scored.
SCORED_SECONDS = 20.0
#: Between two jobs of the latency test, so that each finds the stack idle.
PAUSE_SECONDS = (0.01, 0.05)


@dataclass(frozen=True, slots=True)
class Amounts:
    """How much of everything."""

    rounds: int
    #: Few and many, of an accept rate.
    connections: tuple[int, int]
    #: Of one accept rate, and before it counts.
    seconds: float
    warm_seconds: float
    batch: int
    #: Batches of no-op jobs by contender's key, so that each takes a few seconds.
    batches: dict[str, int]
    nap_batches: dict[str, int]
    #: Jobs one at a time.
    singles: int


AMOUNTS = {
    Size.FULL: Amounts(
        3,
        (64, 256),
        *(5.0, 1.0, 1000),
        {"fairline": 20, "celery": 5, "dramatiq": 16, "dramatiq-confirmed": 8, "procrastinate": 3},
        {"fairline": 10, "celery": 4, "dramatiq": 8, "procrastinate": 3},
        100,
    ),
    Size.QUICK: Amounts(
        1,
        (64, 256),
        *(1.5, 0.4, 1000),
        {"fairline": 8, "celery": 2, "dramatiq": 6, "procrastinate": 1},
        {"fairline": 4, "celery": 1, "dramatiq": 2, "procrastinate": 1},
        40,
    ),
    Size.MINI: Amounts(
        1,
        (4, 8),
        *(0.3, 0.1, 10),
        {"fairline": 3, "celery": 3, "dramatiq": 3, "procrastinate": 3},
        {"fairline": 1, "celery": 1, "dramatiq": 1, "procrastinate": 1},
        5,
    ),
}


#: Seconds since a beginning, and how many jobs were done by then; both never go down.
Curve = list[tuple[float, int]]


def whole_rate(curve: Sequence[tuple[float, int]]) -> float:
    """Jobs a second from the beginning to the last one done."""
    jobs = curve[-1][1]
    seconds = next(at for at, done in curve if done == jobs)
    return jobs / seconds if seconds > 0 else 0.0


def middle_rate(curve: Sequence[tuple[float, int]], edge: float = 0.1) -> float:
    """Jobs a second between a tenth and nine tenths of them: neither start nor thin end count."""
    low, high = moment_of(curve, edge), moment_of(curve, 1 - edge)
    if high <= low:
        return whole_rate(curve)
    return (1 - 2 * edge) * curve[-1][1] / (high - low)


def moment_of(curve: Sequence[tuple[float, int]], share: float) -> float:
    """When this share was done, on a straight line between two looks."""
    wanted = share * curve[-1][1]
    before = curve[0]
    for at, done in curve:
        if done >= wanted:
            step = done - before[1]
            return before[0] + (at - before[0]) * ((wanted - before[1]) / step if step else 0.0)
        before = (at, done)
    return curve[-1][0]


def accept(who: Contender, amounts: Amounts, *, many: bool = False) -> Sample:
    """Submissions a second through HTTP, one job each."""
    return drive(f"accept: {who.name}", who, who.singles, 202, amounts, many=many)


def answer_nothing(who: Contender, amounts: Amounts, *, many: bool = False) -> Sample:
    """The empty Flask route: the most that a peer's server can answer."""
    nothing = [Request("GET", "/empty")]
    return drive("empty Flask route", who, nothing, 200, amounts, many=many)


def poll(ours: Ours, amounts: Amounts) -> list[Sample]:
    """Questions after applications that wait, that are scored, and that are known already."""
    what = "an application to be scored"
    scored = until(lambda: ours.applications("succeeded"), SCORED_SECONDS, what, LOOK_SECONDS)
    pending = ours.applications("queued") or scored
    known = known_polls(ours.port)
    return [
        drive("poll: pending", ours, pending, 200, amounts),
        drive("poll: terminal", ours, scored, 200, amounts),
        drive("poll: 304", ours, known, 304, amounts),
    ]


def drive(
    name: str,
    who: Contender,
    requests: Sequence[Request],
    status: int,
    amounts: Amounts,
    *,
    many: bool = False,
) -> Sample:
    """One closed loop at few or many connections."""
    load = Load(
        *(who.port, amounts.connections[many], amounts.warm_seconds, amounts.seconds),
        *(requests, status),
    )
    return measure(who.fleet, f"{name} @{'many' if many else 'few'}", load)


def post(who: Contender, requests: Sequence[Request]) -> None:
    """All of them, by a few clients at the same time."""
    left = list(requests)
    failures: list[Exception] = []

    def send() -> None:
        try:
            with Client(who.port) as caller:
                while left:
                    caller.ask(left.pop())
        except (OSError, RuntimeError, IndexError) as error:
            failures.append(error)

    threads = [threading.Thread(target=send, daemon=True) for _ in range(CLIENTS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def batches(who: Contender, kind: str, count: int, size: int, ms: int = 0) -> list[Request]:
    """So many requests of so many jobs each."""
    return [who.batch(kind, number * size, size, ms) for number in range(count)]


def follow(counter: Counter, jobs: int, began: float) -> Curve:
    """Look until all are done: seconds since ``began`` and how many were done by then."""
    curve: Curve = [(0.0, 0)]
    while curve[-1][1] < jobs:
        time.sleep(LOOK_SECONDS)
        done = counter()
        now = time.monotonic() - began
        if done == curve[-1][1] and now - last_step(curve) > STALL_SECONDS:
            raise NotReady(f"{jobs - done} of {jobs} jobs have not ended")
        curve.append((now, done))
    return curve


def last_step(curve: Curve) -> float:
    """When the number last changed."""
    last = curve[-1][1]
    return next(at for at, done in curve if done == last)


def drain(who: Contender, amounts: Amounts) -> Sample:
    """No-op jobs that waited before any worker ran; the rate of the middle four fifths."""
    requests = batches(who, "peer.noop", amounts.batches[who.key], amounts.batch)
    counter = who.count_from_now()
    post(who, requests)
    if not who.is_working:
        who.work()
    curve = follow(counter, len(requests) * amounts.batch, time.monotonic())
    return Sample(f"drain: {who.name}", middle_rate(curve))


def flow(who: Contender, amounts: Amounts, kind: str = "peer.noop") -> Sample:
    """Jobs from the first byte of the first batch to the last one done, with workers at work."""
    naps = kind == "peer.nap"
    count = (amounts.nap_batches if naps else amounts.batches)[who.key]
    requests = batches(who, kind, count, amounts.batch, NAP_MS if naps else 0)
    counter = who.count_from_now()
    began = time.monotonic()
    poster = threading.Thread(target=post, args=(who, requests), daemon=True)
    poster.start()
    curve = follow(counter, count * amounts.batch, began)
    poster.join()
    return Sample(f"{'10-ms' if naps else 'no-op'} end to end: {who.name}", whole_rate(curve))


def latencies(who: Contender, amounts: Amounts) -> list[float]:
    """Milliseconds from before the request is sent to the first line of the task, one at a time."""
    found = []
    base = int(time.time() * 1000)
    with Client(who.port) as caller:
        for number in range(base, base + amounts.singles + 1):
            offset = who.witness.stat().st_size if who.witness.exists() else 0
            sent = time.time()
            caller.ask(who.single("peer.mark", number))
            found.append(1000 * (await_start(who, number, offset) - sent))
            time.sleep(random.uniform(*PAUSE_SECONDS))
    return found[1:]  # the first one opens connections


def await_start(who: Contender, number: int, offset: int) -> float:
    """When this job began."""

    def started() -> float | None:
        lines = read_lines(who.witness, offset)
        return next((e.at for e in lines if (e.number, e.what) == (number, "start")), None)

    what = f"job {number} of {who.name} to start"
    return until(started, STALL_SECONDS, what, pause=0.001) or 0.0


def pulse(port: int, requests: Sequence[Request], per_second: float) -> list[float]:
    """Milliseconds to each answer, counted from when the clock said that it was to be sent."""
    found = []
    with Client(port) as caller:
        began = time.perf_counter() + 0.05
        for number, request in enumerate(requests):
            due = began + number / per_second
            time.sleep(max(0.0, due - time.perf_counter()))
            caller.ask(request)
            found.append(1000 * (time.perf_counter() - due))
    return found
