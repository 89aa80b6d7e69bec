"""Fairline and its peers in one run: a long queue, a killed worker, then rates in turns."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from loadtest.lab.experiment import RunContext, Size, Speed, fairline_gauges
from loadtest.lab.peers import turns
from loadtest.lab.peers.contender import WAITING, Contender, Ours, weigh
from loadtest.lab.peers.costs import steady
from loadtest.lab.peers.judge import TITLE as TITLE
from loadtest.lab.peers.judge import draw, judge
from loadtest.lab.peers.killing import kill_workers
from loadtest.lab.peers.rivals import Celery, Dramatiq, Procrastinate
from loadtest.lab.peers.tables import COST_MS, COST_RATE, Measured
from loadtest.report import Report

QUESTION = (
    "How does Fairline compare with other libraries, each set up as its own documentation "
    "recommends: accept rate, jobs per second, latency, losses, memory, processor time?"
)
seconds = {Size.FULL: 840.0, Size.QUICK: 135.0, Size.MINI: 25.0}.__getitem__
#: Submissions per second while the API's latency is measured.
PULSE = 50.0
#: While a worker is killed: short enough to wait for what comes back.
SHORT_LEASE = '{"short":{"lease_seconds":4}}'


AnyContender = TypeVar("AnyContender", bound=Contender)


def run(context: RunContext) -> Report:
    with ExitStack() as stack:
        found = Run(context, stack).measure()
    report = judge(found, context.size)
    report.pictures = draw(found, context.folder)
    return report


class Run:
    def __init__(self, context: RunContext, stack: ExitStack) -> None:
        self._context = context
        self._stack = stack
        self._mini = context.size is Size.MINI
        self._plan = turns.PLANS[context.size]
        self._found = Measured(connections=self._plan.connections)

    def measure(self) -> Measured:
        fleet = self._context.fleet
        self._context.step("schemas and databases")
        settings = {"throttle_crashes": "1000000", "pools": SHORT_LEASE}
        # Two, as its peers where a second one is faster: one for each core.
        ours = self._enter(Ours(self._context, self._plan.score_seconds, processes=2, **settings))
        celery, dramatiq = self._enter(Celery(fleet)), self._enter(Dramatiq(fleet))
        procrastinate = self._enter(Procrastinate(fleet))
        self._measure_queue(ours)
        victims: dict[Contender, bool] = {ours: True, dramatiq: True}
        if not self._mini:
            victims |= {
                self._enter(Procrastinate(fleet, retry_stalled=True)): True,
                procrastinate: False,
                celery: True,
                self._enter(Celery(fleet, acks_late=False)): False,
            }
        self._kill(victims)
        ours.fairline.env.pop("FAIRLINE_POOLS")
        in_turn: list[Contender] = [ours, celery, dramatiq, procrastinate]
        if self._context.size is Size.FULL:
            in_turn.insert(3, self._enter(Dramatiq(fleet, confirm=True)))
        self._found.names = [who.name for who in in_turn]
        self._found.tuning = {who.name: who.tuning for who in in_turn}
        for number in range(self._plan.rounds):
            first = number % len(in_turn)
            for who in in_turn[first:] + in_turn[:first]:
                self._take_turn(who, f"round {number + 1}, {who.name}")
        return self._found

    def _enter(self, who: AnyContender) -> AnyContender:
        self._stack.callback(who.remove)
        self._stack.callback(who.close)
        return who

    def _measure_queue(self, ours: Ours) -> None:
        """The API's latency at a modest rate: with an empty queue, then with thousands of jobs."""
        plan = self._plan
        requests = [
            ours.single("peer.wait", number, plan.wait_ms)
            for number in range(round(PULSE * plan.pulse_seconds))
        ]
        ours.open()
        ours.admit()
        with fairline_gauges(ours.fairline) as gauges:
            turns.pulse(ours.port, requests[: len(requests) // 4], PULSE)
            with self._context.watch("API, empty queue", gauges):
                self._found.idle_ms = turns.pulse(ours.port, requests, PULSE)
            count = plan.queued // plan.batch
            turns.post(ours, turns.batches(ours, "peer.wait", count, plan.batch, plan.wait_ms))
            time.sleep(plan.settle_seconds)
            with self._context.watch(f"API, {plan.queued:,} queued", gauges):
                self._found.lined_ms = turns.pulse(ours.port, requests, PULSE)
        self._found.waiting = ours.read(WAITING)

    def _kill(self, victims: Mapping[Contender, bool]) -> None:
        """Workers are killed; the flag says whether their jobs are to come back automatically."""
        self._context.step("workers are killed -9")
        for victim in victims:
            victim.kill_workers()
        self._found.killed = kill_workers(victims, self._plan)
        if not self._mini:
            for victim in victims:
                victim.close()
                victim.forget()

    def _take_turn(self, who: Contender, step: str) -> None:
        """All figures of one contender, while no other contender's processes run."""
        found, plan = self._found, self._plan
        if not who.is_open:
            who.open()
        who.admit()
        with self._watched(who, f"{step}: accept"):
            found.samples += turns.http_rates(who, plan)
        if not self._mini:
            # Not in a miniature: a worker takes longer to start than all that it has to do there.
            who.kill_workers()
            who.clear_accepted()
        with self._watched(who, f"{step}: jobs"):
            found.samples.append(turns.drain(who, plan))
            found.samples.append(turns.flow(who, plan))
            if who.key in plan.nap_batches:
                found.samples.append(turns.flow(who, plan, "peer.nap"))
        self._context.step(f"{step}: latency")
        found.starts.setdefault(who.name, []).extend(turns.latencies(who, plan))
        found.memory[who.name] = {
            part: weigh(who.fleet, names) for part, names in who.parts.items()
        }
        self._context.step(f"{step}: cost")
        jobs = ("peer.nap", COST_MS, COST_RATE)
        found.costs.append(steady(who, *jobs, plan.warm_seconds, plan.cost_seconds))
        who.close()
        who.forget()

    @contextmanager
    def _watched(self, who: Contender, step: str) -> Iterator[None]:
        counter, speed = who.count_from_now(), Speed()

        def read() -> dict[str, float]:
            done = counter()
            return {"done": done, "done_s": speed(done)}

        with self._context.watch(step, read):
            yield
