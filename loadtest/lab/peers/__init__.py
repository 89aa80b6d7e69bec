"""Fairline and its peers in one run: a long line, a killed worker, then everybody's turns."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import TypeVar

from loadtest.lab.experiment import Desk, Experiment, Size, Speed, fairline_gauges
from loadtest.lab.peers import turns
from loadtest.lab.peers.contender import Contender, Ours, weigh
from loadtest.lab.peers.judge import TITLE, draw, judge
from loadtest.lab.peers.killing import kill_workers
from loadtest.lab.peers.rivals import Celery, Dramatiq, Procrastinate
from loadtest.lab.peers.tables import Measured
from loadtest.lab.peers.turns import AMOUNTS, Amounts
from loadtest.report import Report

#: Submissions a second while the front door's latency is taken.
PULSE = 50.0
PULSE_SECONDS = {Size.FULL: 20.0, Size.QUICK: 4.0, Size.MINI: 0.4}
#: Jobs in line meanwhile, and how long each of them keeps a slot.
LINE = {Size.FULL: 10_000, Size.QUICK: 10_000, Size.MINI: 40}
WAIT_MS = {Size.FULL: 1000, Size.QUICK: 1000, Size.MINI: 50}
#: How long an application is scored.
SCORE_SECONDS = {Size.FULL: "1.5", Size.QUICK: "1.5", Size.MINI: "0.2"}
#: For the scheduler to have seen them.
SETTLE_SECONDS = {Size.FULL: 3.0, Size.QUICK: 1.0, Size.MINI: 0.0}
#: While a worker is killed: short enough to watch what comes back.
SHORT_LEASE = '{"short":{"lease_seconds":4}}'


AnyContender = TypeVar("AnyContender", bound=Contender)


def run(desk: Desk) -> Report:
    """Fairline, plain Celery, Dramatiq and Procrastinate in one run."""
    with ExitStack() as stack:
        found = Run(desk, stack).measure()
    report = judge(found, desk.size)
    report.pictures = draw(found, desk.folder)
    return report


class Run:
    """One run of the comparison."""

    def __init__(self, desk: Desk, stack: ExitStack) -> None:
        self._desk = desk
        self._stack = stack
        self._size = desk.size
        self._amounts: Amounts = AMOUNTS[desk.size]
        self._found = Measured(connections=self._amounts.connections)

    def measure(self) -> Measured:
        """Everything, in order."""
        desk, fleet = self._desk, self._desk.fleet
        desk.step("schemas and databases")
        ours = self._enter(
            Ours(
                fleet,
                pools=SHORT_LEASE,
                throttle_crashes="1000000",
                score_seconds=SCORE_SECONDS[desk.size],
            )
        )
        celery, dramatiq = self._enter(Celery(fleet)), self._enter(Dramatiq(fleet))
        procrastinate = self._enter(Procrastinate(fleet))
        self._stand_in_line(ours)
        victims: list[tuple[Contender, bool]] = [(ours, True), (dramatiq, True)]
        if self._size is not Size.MINI:
            victims += [
                (self._enter(Procrastinate(fleet, retry_stalled=True)), True),
                (procrastinate, False),
                (celery, True),
                (self._enter(Celery(fleet, acks_late=False)), False),
            ]
        self._kill(victims)
        ours.fairline.env.pop("FAIRLINE_POOLS")
        in_turn: list[Contender] = [ours, celery, dramatiq, procrastinate]
        if self._size is Size.FULL:
            in_turn.insert(3, self._enter(Dramatiq(fleet, confirm=True)))
        self._found.names = [who.name for who in in_turn]
        self._found.tuning = {who.name: who.tuning for who in in_turn}
        for number in range(self._amounts.rounds):
            first = number % len(in_turn)
            for who in in_turn[first:] + in_turn[:first]:
                self._take_turn(who, f"round {number + 1}, {who.name}")
        return self._found

    def _enter(self, who: AnyContender) -> AnyContender:
        self._stack.callback(who.remove)
        self._stack.callback(who.close)
        return who

    def _stand_in_line(self, ours: Ours) -> None:
        """The front door's latency at a modest rate: nobody waits, then thousands do."""
        wait_ms = WAIT_MS[self._size]
        requests = [
            ours.single("peer.wait", number, wait_ms)
            for number in range(round(PULSE * PULSE_SECONDS[self._size]))
        ]
        self._desk.step("front door, nobody waits")
        ours.open()
        ours.admit()
        with fairline_gauges(ours.fairline) as gauges:
            turns.pulse(ours.port, requests[: len(requests) // 4], PULSE)
            with self._desk.watch("front door, nobody waits", gauges):
                self._found.idle_ms = turns.pulse(ours.port, requests, PULSE)
            step = f"front door, {LINE[self._size]:,} wait"
            self._desk.step(step)
            size = self._amounts.batch
            count = LINE[self._size] // size
            turns.post(ours, turns.batches(ours, "peer.wait", count, size, wait_ms))
            time.sleep(SETTLE_SECONDS[self._size])
            with self._desk.watch(step, gauges):
                self._found.lined_ms = turns.pulse(ours.port, requests, PULSE)
        self._found.waiting = ours.waiting()

    def _kill(self, victims: list[tuple[Contender, bool]]) -> None:
        """Workers die; the flag says whether what they held is to come back by itself."""
        self._desk.step("workers are killed -9")
        for victim, _ in victims:
            victim.kill_workers()
        self._found.killed = kill_workers(victims, self._size)
        if self._size is not Size.MINI:
            for victim, _ in victims:
                victim.close()
                victim.forget()

    def _take_turn(self, who: Contender, step: str) -> None:
        """All figures of one contender; nobody else's processes run."""
        found, amounts, desk = self._found, self._amounts, self._desk
        if not who.is_open:
            who.open()
        who.admit()
        desk.step(f"{step}: accept")
        with self._watched(who, f"{step}: accept"):
            found.samples.append(turns.accept(who, amounts))
            if isinstance(who, Ours):
                found.samples.append(turns.accept(who, amounts, many=True))
                found.samples += turns.poll(who, amounts)
            elif isinstance(who, Celery):
                found.samples.append(turns.answer_nothing(who, amounts))
                found.samples.append(turns.answer_nothing(who, amounts, many=True))
        if self._size is not Size.MINI:
            # Not in a miniature: a worker takes longer to start than all that it has to do there.
            who.kill_workers()
            who.clear_accepted()
        desk.step(f"{step}: jobs")
        with self._watched(who, f"{step}: jobs"):
            found.samples.append(turns.drain(who, amounts))
            found.samples.append(turns.flow(who, amounts))
            if who.key in amounts.nap_batches:
                found.samples.append(turns.flow(who, amounts, "peer.nap"))
        desk.step(f"{step}: latency")
        found.starts.setdefault(who.name, []).extend(turns.latencies(who, amounts))
        found.memory[who.name] = {
            part: weigh(who.fleet, names) for part, names in who.parts.items()
        }
        who.close()
        who.forget()

    @contextmanager
    def _watched(self, who: Contender, step: str) -> Iterator[None]:
        """Jobs done, once a second."""
        counter, speed = who.count_from_now(), Speed()

        def read() -> dict[str, float]:
            done = counter()
            return {"done": done, "done_s": speed(done)}

        with self._desk.watch(step, read):
            yield


EXPERIMENT = Experiment(
    "peers",
    TITLE,
    "How does Fairline compare with what people use today, each set up as its own "
    "documentation recommends: accept rate, jobs a second, latency, losses, memory?",
    {Size.FULL: 720.0, Size.QUICK: 115.0, Size.MINI: 15.0}.__getitem__,
    run,
)
