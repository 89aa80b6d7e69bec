"""What a job costs Fairline and its peers at fixed rates, and Fairline as processes are added.

Jobs of five lengths are submitted one by one at fixed rates, to one contender after the other.
Then Fairline alone: workers on a full queue, and API processes under all the submissions that they
can take, while what PostgreSQL's backends wait for is sampled.
"""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import dataclass

from sqlalchemy import Engine

from loadtest import accept
from loadtest.baselines.witness import LENGTHS_MS
from loadtest.closed_loop import Load
from loadtest.figures import MACHINE, CoreMeter
from loadtest.fleet import TENANT, admit, rows, tenant_id, until
from loadtest.lab.cost.drawing import draw
from loadtest.lab.cost.verdict import TITLE as TITLE
from loadtest.lab.cost.verdict import Grown, Measured, judge
from loadtest.lab.cost.waits import WaitSampler
from loadtest.lab.experiment import POOL, SLOTS, Gauges, RunContext, Size
from loadtest.lab.peers.contender import Contender, Ours
from loadtest.lab.peers.costs import (
    CLIENTS,
    POSTGRES,
    RABBITMQ,
    STALL_SECONDS,
    Cost,
    measure,
    processes,
    steady,
)
from loadtest.lab.peers.rivals import Celery, Dramatiq, Procrastinate
from loadtest.lab.peers.turns import pulse
from loadtest.report import Report

QUESTION = (
    "How much processor time and WAL does a job take, by kind of process and for each library, "
    "and what becomes of it as workers and API processes are added?"
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What is measured, and for how long."""

    #: Jobs submitted per second, and how long they take.
    rates: tuple[float, ...] = (20.0, 100.0)
    lengths_ms: tuple[int, ...] = LENGTHS_MS
    #: Of each cost, and before it counts.
    seconds: float = 12.0
    warm_seconds: float = 2.0
    #: Worker processes of ten slots on a full queue of 50-ms jobs, and API processes.
    workers: tuple[int, ...] = (1, 2, 4, 8)
    apis: tuple[int, ...] = (1, 2, 4)
    #: Jobs of 1.5 s that one worker with enough slots runs per second.
    simulated: float = 500.0
    connections: int = 64

    @property
    def slots(self) -> int:
        """Of every contender at fixed rates: enough for the longest jobs, with a reserve."""
        return 2 * math.ceil(0.65 * max(self.rates) * max(self.lengths_ms) / 1000) or 2


PLANS = {
    Size.FULL: Plan(),
    Size.QUICK: Plan((100.0,), seconds=4.0, warm_seconds=1.0),
    Size.MINI: Plan(
        rates=(20.0,),
        lengths_ms=(0, 50),
        seconds=1.0,
        warm_seconds=0.3,
        workers=(1, 2),
        apis=(1, 2),
        simulated=20.0,
        connections=4,
    ),
}
#: What a contender, a worker and an API take to start.
OPEN_SECONDS, WORKER_SECONDS, API_SECONDS = 7.0, 2.0, 3.0
#: The length of jobs in the full queue, and of those of which there are many at the same time.
QUEUED_MS, SIMULATED_MS = 50, 1500
#: Submissions per second to plain Celery at most, and how long a worker of its may take to start.
MOST_RATE, STARTED_SECONDS = 10_000.0, 5.0
#: How many times the jobs that can end are queued.
RESERVE = 1.2
MEASURED_TYPE = """
    INSERT INTO job_types (type, declared_pool, pool, mean_seconds, runs)
    VALUES (:type, :pool, :pool, :seconds, 1000)
    ON CONFLICT (type) DO UPDATE SET mean_seconds = excluded.mean_seconds, runs = excluded.runs
    RETURNING type
"""
OFFERED = "SELECT coalesce(sum(slots), 0)::int FROM processes WHERE slots > 0"
#: What a run takes, by the worker's own record. A sleep of 50 ms takes 50.9 in gevent, whose timers
#: are rounded up to milliseconds; slots that are always busy cannot do better than that.
RUN_SECONDS = "SELECT coalesce(avg(slot_seconds), 0) FROM jobs WHERE status = 'succeeded'"
QUEUED = "SELECT coalesce(sum(queued), 0)::bigint FROM job_counts WHERE tenant_id = 0"


def seconds(size: Size) -> float:
    plan = PLANS[size]
    each = [
        2 * plan.warm_seconds + plan.seconds + 2 * ms / 1000 + 1
        for rate in plan.rates
        for ms in plan.lengths_ms
    ]
    counts = len(plan.workers) + len(plan.apis) + 1
    starts = WORKER_SECONDS * max(plan.workers) + API_SECONDS * len(plan.apis)
    celery = OPEN_SECONDS + STARTED_SECONDS + plan.seconds + plan.warm_seconds
    grown = starts + counts * (2 * plan.seconds + 4)
    return 12 + 4 * (OPEN_SECONDS + sum(each)) + celery + grown + 12


def run(context: RunContext) -> Report:
    with ExitStack() as stack:
        found = Run(context, stack).measure()
    report = judge(found, context.size)
    report.pictures = draw(found, context.folder)
    return report


def type_name(ms: int) -> str:
    return f"peer.wait.{ms}"


def core_gauges(who: Contender) -> Gauges:
    """Cores in use by kind of process, by the kernel's accounts: no server is asked."""
    meter = CoreMeter(processes(who))
    return lambda: {
        f"{kind} cores": round(used, 2) for kind, used in meter.read().items() if kind != MACHINE
    }


class Run:
    def __init__(self, context: RunContext, stack: ExitStack) -> None:
        self._context, self._stack = context, stack
        self._plan = PLANS[context.size]
        self._ours = Ours(context, 0.0, POOL)
        self._found = Measured(slots=self._plan.slots)

    def measure(self) -> Measured:
        fleet, ours = self._context.fleet, self._ours
        self._context.step("schemas and databases")
        peers = (Celery(fleet), Dramatiq(fleet, confirm=True), Procrastinate(fleet))
        for who in (ours, *peers):
            self._stack.callback(who.remove)
            self._stack.callback(who.close)
        engine = self._stack.enter_context(ours.fairline.engine(60.0))
        for ms in {*self._plan.lengths_ms, QUEUED_MS, SIMULATED_MS}:
            rows(engine, MEASURED_TYPE, type=type_name(ms), pool=POOL, seconds=ms / 1000)
        for who in (ours, *peers):
            self._take_turn(who)
        self._drain_celery(peers[0])
        self._grow_workers(engine)
        self._simulate(engine)
        self._grow_api()
        return self._found

    def _take_turn(self, who: Contender) -> None:
        """Jobs of all lengths at all rates, while no other contender's processes run."""
        plan = self._plan
        self._context.step(f"{who.name}: starting")
        who.slots = plan.slots
        who.open()
        who.work()
        if isinstance(who, Ours):
            who.fairline.start_flower()
            who.fairline.await_ready()
            who.fairline.await_slots(POOL, who.slots)
        else:
            self._await_worker(who)
        for rate in plan.rates:
            for ms in plan.lengths_ms:
                kind = type_name(ms) if isinstance(who, Ours) else "peer.nap"
                step = f"{who.name}: {rate:g} jobs of {ms} ms per second"
                with self._context.watch(step, core_gauges(who)):
                    cost = steady(who, kind, ms, rate, plan.warm_seconds, plan.seconds)
                self._found.steady.append(cost)
        who.close()
        who.forget()

    def _await_worker(self, who: Contender) -> None:
        """The cost of jobs before a worker has started is that of its start."""
        steady(who, "peer.nap", 0, self._plan.rates[-1], 0.0, self._plan.warm_seconds)

    def _drain_celery(self, celery: Celery) -> None:
        """What Fairline's full queue is judged by: how quick the machine is does not matter."""
        plan = self._plan
        self._context.step("plain Celery: a full queue")
        celery.slots = SLOTS
        celery.open()
        warm = 2 * plan.warm_seconds + STARTED_SECONDS
        jobs = round(SLOTS * 1000 / QUEUED_MS * (warm + plan.seconds))
        requests = [celery.single("peer.nap", number, QUEUED_MS) for number in range(jobs)]
        pulse(celery.port, requests, MOST_RATE, CLIENTS)
        # The API takes no part in it, as with Fairline.
        celery.fleet.kill(*celery.parts["API"])
        celery.work()
        done = celery.count_from_now()
        until(lambda: done() > 0, STALL_SECONDS, "plain Celery's worker")
        time.sleep(2 * plan.warm_seconds)
        with self._context.watch("plain Celery: 50-ms jobs, full queue", core_gauges(celery)):
            self._found.celery = measure(celery, QUEUED_MS, 0.0, plan.seconds)
        celery.close()
        celery.forget()

    def _grow_workers(self, engine: Engine) -> None:
        """Workers are added, never replaced; each number of them has a full queue."""
        ours, alive = self._ours, 0
        self._context.step("Fairline: a full queue")
        ours.fairline.start_scheduler()
        ours.fairline.start_flower()
        for workers in self._plan.workers:
            self._context.step(f"to {workers} workers")
            for number in range(alive + 1, workers + 1):
                ours.fairline.start_worker(POOL, number)
            alive = workers
            found = self._drain(engine, workers, workers * SLOTS, QUEUED_MS)
            self._found.workers.append(found)
        ours.close()
        ours.forget()

    def _simulate(self, engine: Engine) -> None:
        """As many jobs of 1.5 s at the same time as there are slots in one large worker."""
        ours, slots = self._ours, round(self._plan.simulated * SIMULATED_MS / 1000)
        self._context.step(f"one worker with {slots} slots")
        ours.fairline.start_scheduler()
        ours.fairline.start_flower()
        ours.fairline.start_worker(POOL, slots=slots)
        self._found.simulated = self._drain(engine, 1, slots, SIMULATED_MS)
        ours.close()
        ours.forget()

    def _drain(self, engine: Engine, workers: int, slots: int, ms: int) -> Grown:
        """Fill the queue when all workers are there, and measure while it is not empty."""
        plan, ideal = self._plan, slots * 1000 / ms
        what = f"{slots} slots"
        until(lambda: rows(engine, OFFERED)[0][0] >= slots, 30.0 + 10 * workers, what)
        # Long enough for the reserve at the broker to reach its size.
        warm = 2 * plan.warm_seconds + 6 * ms / 1000
        # Jobs that began together end together: a shorter time may see none of them.
        seconds = max(plan.seconds, 2 * ms / 1000)
        jobs = round(RESERVE * ideal * (warm + 2 * seconds)) + 100
        payloads = ({"ms": ms, "n": number} for number in range(jobs))
        admit(engine, tenant_id(engine, TENANT), type_name(ms), POOL, payloads)
        time.sleep(warm)
        step = f"{workers} worker{'s' if workers > 1 else ''}, {slots} slots, {ms}-ms jobs"
        with self._context.watch(step, core_gauges(self._ours)):
            cost = measure(self._ours, ms, 0.0, seconds)
            # Afterwards: a look takes PostgreSQL as much time as a few jobs.
            with self._waits() as waits:
                time.sleep(seconds)
        possible = slots / max(ms / 1000, rows(engine, RUN_SECONDS)[0][0])
        left = int(rows(engine, QUEUED)[0][0])
        return Grown(workers, cost, waits.waited, possible, left, slots)

    def _grow_api(self) -> None:
        """All submissions that so many API processes can take, one job per request."""
        ours, plan = self._ours, self._plan
        requests = [ours.single(type_name(QUEUED_MS), n, QUEUED_MS) for n in range(500)]
        ours.fairline.start_scheduler()
        for count in plan.apis:
            step = f"{count} API process{'es' if count > 1 else ''}"
            self._context.step(f"starting {step}")
            ours.fairline.start_api(FAIRLINE_API_WORKERS=str(count))
            load = Load(ours.port, plan.connections, plan.warm_seconds, plan.seconds, requests, 202)
            with self._context.watch(step, core_gauges(ours)), self._waits() as waits:
                sample = accept.measure(ours.fleet, step, load)
            named = {"API": "api", "scheduler": "scheduler"}
            named |= {RABBITMQ: "rabbitmq", POSTGRES: "postgres"}
            cores = {kind: sample.cores[name] for kind, name in named.items()}
            cost = Cost(ours.name, QUEUED_MS, 0.0, sample.rate, cores)
            self._found.apis.append(Grown(count, cost, waits.waited))
            self._found.unexpected += sample.unexpected
            ours.fleet.kill("api")

    def _waits(self) -> WaitSampler:
        return WaitSampler(self._ours.database_url)
