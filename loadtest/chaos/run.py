"""One chaos run: load and hits at the same time, then calm, then the judge."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

from app.stack.rabbitmq import EmbeddedRabbitMQ
from loadtest.chaos.client import Listener
from loadtest.chaos.facts import World, read_world, wait_until_settled
from loadtest.chaos.judge import Judge, Report
from loadtest.chaos.load import Ledger, Load
from loadtest.chaos.plan import Act, Hit, plan
from loadtest.chaos.stack import EVERY_POOL, Stack, embedded_stack
from loadtest.chaos.striker import Striker
from loadtest.chaos.witness import VARIABLE, read_lines

#: Everything must have ended so long after the last hit: five leases of a job that kills its
#: worker, five starts of that worker, and a line that has piled up meanwhile.
SETTLE_SECONDS = 180.0
READY_SECONDS = 90.0
#: The striker does not wait longer to learn who is busy.
LOOK_SECONDS = 0.5
#: The last ends must have been heard so long after they were written.
HEARD_SECONDS = 30.0
#: No job that kills its worker is ordered in this last part of a run.
HARMLESS_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class Wish:
    """What kind of run it is to be."""

    seed: int
    seconds: float
    #: Where the log, the hits and the report go.
    folder: Path
    targets: tuple[str, ...]
    broker: str = "rabbitmq"
    per_second: float = 10.0

    def hits(self) -> list[Hit]:
        """The plan, which follows from the wish alone."""
        return plan(self.targets, self.seconds, self.seed)


@dataclass(slots=True)
class Progress:
    """Where the run is, for whoever shows it."""

    planned: int
    ledger: Ledger
    striker: Striker
    listener: Listener
    #: What is happening now, in words.
    now: str = "warming up"
    began: float = field(default_factory=time.monotonic)
    #: Seconds from the last hit until everything had ended.
    calm: float = 0.0


Watcher = Callable[[Progress], None]


def nobody(_: Progress) -> None:
    """Shows nothing."""


def run(wish: Wish, watch: Watcher = nobody) -> tuple[Striker, Report]:
    """A stack of its own, hit under load; what the judge says."""
    witness = wish.folder / "witness.jsonl"
    variables = {**EVERY_POOL, "BROKER": wish.broker, VARIABLE: str(witness)}
    with embedded_stack(**variables) as stack, stack.engine(LOOK_SECONDS) as engine:
        ledger = Ledger(wish.folder / "client.jsonl")
        striker, listener = Striker(stack, engine), Listener(stack.port)
        progress = Progress(len(wish.hits()), ledger, striker, listener)

        def say(words: str) -> None:
            progress.now = words
            watch(progress)

        try:
            with listener.listening():
                listener.placed.wait(READY_SECONDS)
                _disturb(wish, stack, progress, say)
                world = _calm(wish, stack, progress, say)
                report = Judge(
                    ledger.exchanges, world, striker.strikes, read_lines(witness), listener.heard
                ).report()
                report.figures["seconds until all had ended"] = round(progress.calm)
            say("done")
        finally:
            ledger.close()
            keep_logs(stack, wish.folder)
    write_world(wish, world)
    write_report(wish, striker, report)
    return striker, report


def _disturb(wish: Wish, stack: Stack, progress: Progress, say: Callable[[str], None]) -> None:
    """Load and hits."""
    load = Load(stack.port, progress.ledger, seed=wish.seed, per_second=wish.per_second)

    def tell(hit: Hit) -> None:
        if hit.at_seconds > wish.seconds * HARMLESS_SHARE:
            load.harmless.set()
        say(f"hit {hit.number}/{progress.planned}: {hit}")

    with load.running():
        progress.striker.run(wish.hits(), tell)
        progress.striker.wait_replaced(READY_SECONDS)
        say("waiting for the clients' last answers")


def _calm(wish: Wish, stack: Stack, progress: Progress, say: Callable[[str], None]) -> World:
    """Wait until everything has ended and been told; read what is true then."""
    say("waiting for the last jobs")
    began = time.monotonic()
    with stack.engine() as engine:  # with its usual patience
        wait_until_settled(engine, SETTLE_SECONDS)
        progress.calm = time.monotonic() - began
        stack.wait_ready(READY_SECONDS)
        broker = EmbeddedRabbitMQ(stack.home.path).url() if wish.broker == "rabbitmq" else None
        world = read_world(engine, stack.port, broker)
    say("waiting for the last events")
    ends = {job.id: job.status for job in world.jobs.values() if job.finished_at}
    progress.listener.wait_for(ends, HEARD_SECONDS)
    return world


def keep_logs(stack: Stack, folder: Path) -> None:
    """The stack's folder goes; what its processes said stays with the report."""
    shutil.copytree(stack.home.path / "logs", folder / "logs", dirs_exist_ok=True)
    shutil.copy(stack.output, folder / "logs" / "up.out")


def write_world(wish: Wish, world: World) -> None:
    """The rows that the judge saw, one a line."""
    with (wish.folder / "jobs.jsonl").open("w") as file:
        for job in world.jobs.values():
            attempts = [asdict(attempt) for attempt in world.attempts.get(job.id, ())]
            file.write(json.dumps({**asdict(job), "attempts": attempts}) + "\n")


def write_report(wish: Wish, striker: Striker, report: Report) -> None:
    """Everything for machines."""
    document = {
        "seed": wish.seed,
        "seconds": wish.seconds,
        "targets": wish.targets,
        "broker": wish.broker,
        "ok": report.ok,
        "kills": kills(striker),
        "figures": report.figures,
        "faults": report.faults,
        "strikes": [strike.told() for strike in striker.strikes],
    }
    (wish.folder / "report.json").write_text(json.dumps(document, indent=1) + "\n")


def kills(striker: Striker) -> int:
    """Kills that met somebody."""
    return sum(strike.hit.act is Act.KILL and bool(strike.pids) for strike in striker.strikes)
