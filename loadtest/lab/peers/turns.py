"""What is measured of a contender in its turn: accept rate, jobs per second, latency."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from loadtest.accept import known_polls, measure, polls_of
from loadtest.baselines.witness import read_lines
from loadtest.closed_loop import Client, Load, Request
from loadtest.figures import Sample
from loadtest.fleet import NotReady, until
from loadtest.lab.experiment import Size
from loadtest.lab.peers.contender import Contender, Counter, Ours
from loadtest.lab.peers.rivals import Celery

#: Clients that post batches at the same time.
CLIENTS = 4
NAP_MS = 10
LOOK_SECONDS = 0.05
STALL_SECONDS = 60.0
#: Until the first application is scored.
SCORED_SECONDS = 20.0
#: Between two jobs of the latency test, so that the stack is idle for each.
PAUSE_SECONDS = (0.01, 0.05)


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything is measured; the defaults are those of a full run."""

    #: Batches of no-op jobs by contender's key, so that each takes a few seconds.
    batches: dict[str, int]
    #: The same of 10-ms jobs.
    nap_batches: dict[str, int]
    rounds: int = 1
    #: Few and many, of an accept rate.
    connections: tuple[int, int] = (64, 256)
    #: Of one accept rate, and before it counts.
    seconds: float = 5.0
    warm_seconds: float = 1.0
    #: Jobs of one batch.
    batch: int = 1000
    #: Jobs one at a time.
    singles: int = 100
    #: For how long the API's latency is measured, with this many jobs queued, each of which
    #: keeps a slot for so long, after the scheduler has had time to see them.
    pulse_seconds: float = 20.0
    queued: int = 10_000
    wait_ms: int = 1000
    settle_seconds: float = 3.0
    score_seconds: float = 1.5
    #: Jobs promised before the kill, and silence after which nothing more is expected to happen.
    kill_jobs: int = 500
    #: While processor time is read.
    cost_seconds: float = 6.0
    quiet_seconds: float = 3.0


PLANS = {
    Size.FULL: Plan(
        {"fairline": 20, "celery": 5, "dramatiq": 16, "dramatiq-confirmed": 8, "procrastinate": 3},
        {"fairline": 10, "celery": 4, "dramatiq": 8, "procrastinate": 3},
        rounds=3,
    ),
    Size.QUICK: Plan(
        {"fairline": 8, "celery": 2, "dramatiq": 6, "procrastinate": 1},
        {"fairline": 4, "celery": 1, "dramatiq": 2, "procrastinate": 1},
        seconds=1.5,
        warm_seconds=0.4,
        pulse_seconds=4.0,
        settle_seconds=1.0,
        singles=40,
        cost_seconds=3.0,
    ),
    Size.MINI: Plan(
        dict.fromkeys(("fairline", "celery", "dramatiq", "procrastinate"), 3),
        dict.fromkeys(("fairline", "celery", "dramatiq", "procrastinate"), 1),
        connections=(4, 8),
        seconds=1.0,
        warm_seconds=0.1,
        pulse_seconds=0.4,
        settle_seconds=0.0,
        batch=10,
        singles=5,
        queued=40,
        wait_ms=50,
        kill_jobs=60,
        score_seconds=0.2,
        quiet_seconds=0.5,
        cost_seconds=0.5,
    ),
}


#: Seconds since a beginning, and how many jobs were done by then; both never go down.
Curve = list[tuple[float, int]]


def whole_rate(curve: Sequence[tuple[float, int]]) -> float:
    """Jobs per second from the beginning to the last one done."""
    jobs = curve[-1][1]
    seconds = next(at for at, done in curve if done == jobs)
    return jobs / seconds if seconds > 0 else 0.0


def middle_rate(curve: Sequence[tuple[float, int]]) -> float:
    """Jobs per second between a tenth and nine tenths of them: start and end do not count."""
    low, high = moment_of(curve, 0.1), moment_of(curve, 0.9)
    if high <= low:
        return whole_rate(curve)
    return 0.8 * curve[-1][1] / (high - low)


def moment_of(curve: Sequence[tuple[float, int]], share: float) -> float:
    """When this share was done, interpolated between two readings."""
    wanted = share * curve[-1][1]
    before = curve[0]
    for at, done in curve:
        if done >= wanted:
            step = done - before[1]
            return before[0] + (at - before[0]) * ((wanted - before[1]) / step if step else 0.0)
        before = (at, done)
    return curve[-1][0]


def http_rates(who: Contender, plan: Plan) -> list[Sample]:
    """Submissions per second, one job each; Fairline's polls; the empty route as the ceiling."""
    few, many = plan.connections

    def rate(name: str, requests: Sequence[Request], status: int, connections: int) -> Sample:
        load = Load(who.port, connections, plan.warm_seconds, plan.seconds, requests, status)
        return measure(who.fleet, f"{name} @{'few' if connections == few else 'many'}", load)

    samples = [rate(f"accept: {who.name}", who.singles, 202, few)]
    if isinstance(who, Ours):
        samples.append(rate(f"accept: {who.name}", who.singles, 202, many))
        what = "an application to be scored"
        ours = who.fairline
        scored = until(lambda: polls_of(ours, "succeeded"), SCORED_SECONDS, what, LOOK_SECONDS)
        pending = polls_of(ours, "queued") or scored
        samples += [
            rate("poll: pending", pending, 200, few),
            rate("poll: terminal", scored, 200, few),
            rate("poll: 304", known_polls(who.port), 304, few),
        ]
    elif isinstance(who, Celery):
        empty = [Request("GET", "/empty")]
        samples += [rate("empty Flask route", empty, 200, at) for at in (few, many)]
    return samples


def post(who: Contender, requests: Sequence[Request]) -> None:
    """All of them, by a few clients at the same time."""

    def send(part: Sequence[Request]) -> None:
        with Client(who.port) as client:
            for request in part:
                client.ask(request)

    with ThreadPoolExecutor(CLIENTS) as threads:
        # Raises what a client raised.
        list(threads.map(send, [requests[first::CLIENTS] for first in range(CLIENTS)]))


def batches(who: Contender, kind: str, count: int, size: int, ms: int = 0) -> list[Request]:
    return [who.batch(kind, number * size, size, ms) for number in range(count)]


def follow(counter: Counter, jobs: int, began: float) -> Curve:
    """Count until all are done: seconds since ``began`` and how many were done by then."""
    curve: Curve = [(0.0, 0)]
    changed = 0.0
    while curve[-1][1] < jobs:
        time.sleep(LOOK_SECONDS)
        done = counter()
        now = time.monotonic() - began
        if done > curve[-1][1]:
            changed = now
        elif now - changed > STALL_SECONDS:
            raise NotReady(f"{jobs - done} of {jobs} jobs have not ended")
        curve.append((now, done))
    return curve


def drain(who: Contender, plan: Plan) -> Sample:
    """No-op jobs that waited before any worker ran; the rate of the middle four fifths."""
    requests = batches(who, "peer.noop", plan.batches[who.key], plan.batch)
    counter = who.count_from_now()
    post(who, requests)
    if not who.is_working:
        who.work()
    curve = follow(counter, len(requests) * plan.batch, time.monotonic())
    return Sample(f"drain: {who.name}", middle_rate(curve))


def flow(who: Contender, plan: Plan, kind: str = "peer.noop") -> Sample:
    """Jobs from the first byte of the first batch to the last one done, with workers at work."""
    naps = kind == "peer.nap"
    count = (plan.nap_batches if naps else plan.batches)[who.key]
    requests = batches(who, kind, count, plan.batch, NAP_MS if naps else 0)
    counter = who.count_from_now()
    began = time.monotonic()
    with ThreadPoolExecutor(1) as poster:
        posted = poster.submit(post, who, requests)
        curve = follow(counter, count * plan.batch, began)
        posted.result()
    return Sample(f"{'10-ms' if naps else 'no-op'} end to end: {who.name}", whole_rate(curve))


def latencies(who: Contender, plan: Plan) -> list[float]:
    """Milliseconds from before the request is sent to the first line of the task, one at a time."""
    found = []
    base = int(time.time() * 1000)
    with Client(who.port) as caller:
        for number in range(base, base + plan.singles + 1):
            offset = who.witness_bytes()
            sent = time.time()
            caller.ask(who.single("peer.mark", number))
            found.append(1000 * (await_start(who, number, offset) - sent))
            time.sleep(random.uniform(*PAUSE_SECONDS))
    return found[1:]  # the first one opens connections


def await_start(who: Contender, number: int, offset: int) -> float:
    def started() -> float | None:
        lines = read_lines(who.witness, offset)
        return next((e.at for e in lines if (e.number, e.what) == (number, "start")), None)

    what = f"job {number} of {who.name} to start"
    return until(started, STALL_SECONDS, what, pause=0.001) or 0.0


def pulse(
    port: int, requests: Sequence[Request], per_second: float, clients: int = 1
) -> list[float]:
    """Milliseconds from when each request was due to its response, client after client."""
    began = time.perf_counter() + 0.05

    def send(first: int) -> list[float]:
        found = []
        with Client(port) as caller:
            for number in range(first, len(requests), clients):
                due = began + number / per_second
                time.sleep(max(0.0, due - time.perf_counter()))
                caller.ask(requests[number])
                found.append(1000 * (time.perf_counter() - due))
        return found

    with ThreadPoolExecutor(clients) as threads:
        return [ms for found in threads.map(send, range(clients)) for ms in found]
