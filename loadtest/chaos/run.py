"""One chaos run: load and hits at the same time, then a calm phase, then the judge."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from glob import glob
from pathlib import Path

from app.stack.rabbitmq import EmbeddedRabbitMQ
from loadtest.chaos.client import Listener
from loadtest.chaos.disk import may_mount
from loadtest.chaos.facts import World, read_world, wait_until_settled
from loadtest.chaos.judge import Findings, Judge
from loadtest.chaos.load import ExchangeLog, Load
from loadtest.chaos.plan import Act, Hit, plan
from loadtest.chaos.stack import EVERY_POOL, Stack, embedded_stack
from loadtest.chaos.striker import Striker
from loadtest.chaos.witness import VARIABLE, read_lines

#: In the folder ``skew``: wrong clocks for some of the processes.
LIBRARIES = "/usr/lib/*/faketime/libfaketime.so.1"
#: Every job must have ended so long after the last hit: five leases of a job that kills its
#: worker, five starts of that worker, and the backlog of that time.
SETTLE_SECONDS = 180.0
READY_SECONDS = 90.0
#: Statement timeout of the striker's question which workers are busy.
LOOK_SECONDS = 0.5
#: The last events must have been received so long after they were written.
EVENT_SECONDS = 30.0
#: No job that kills its worker is submitted after this part of a run.
HARMLESS_SHARE = 0.6


def impossible() -> dict[str, str]:
    """What this machine does not allow to do, and why."""
    found = {}
    if not may_mount():
        found["full-disk"] = "only root may mount a file system of its own"
    if not glob(LIBRARIES):
        found["wrong clocks"] = "libfaketime is not installed"
    return found


@dataclass(frozen=True, slots=True)
class ChaosOptions:
    seed: int
    seconds: float
    #: Where the logs, the hits and the report go.
    folder: Path
    targets: tuple[str, ...]
    broker: str = "rabbitmq"
    per_second: float = 10.0

    def hits(self) -> list[Hit]:
        """The plan, which follows from the options alone."""
        return plan(self.targets, self.seconds, self.seed)


@dataclass(slots=True)
class Progress:
    """A run in progress, for whatever displays it."""

    options: ChaosOptions
    stack: Stack
    log: ExchangeLog
    striker: Striker
    listener: Listener
    watch: Callable[[Progress], None]
    #: What happens at the moment.
    now: str = "warming up"
    began: float = field(default_factory=time.monotonic)
    #: Seconds from the last hit until every job had ended.
    calm: float = 0.0

    def say(self, words: str) -> None:
        self.now = words
        self.watch(self)


def run(
    options: ChaosOptions, watch: Callable[[Progress], None] = lambda _: None
) -> tuple[Striker, Findings]:
    """A stack, hit under load; what the judge found."""
    witness = options.folder / "witness.jsonl"
    variables = {
        **EVERY_POOL,
        "BROKER": options.broker,
        VARIABLE: str(witness),
        "PYTHONPATH": str(Path(__file__).with_name("skew")),
    }
    with embedded_stack(True, **variables) as stack, stack.engine(LOOK_SECONDS) as engine:
        log = ExchangeLog(options.folder / "client.jsonl")
        striker, listener = Striker(stack, engine), Listener(stack.port)
        progress = Progress(options, stack, log, striker, listener, watch)
        try:
            with listener.listening():
                listener.placed.wait(READY_SECONDS)
                disturb(progress)
                world = settle(progress)
                report = Judge(
                    log.exchanges, world, striker.strikes, read_lines(witness), listener.ends
                ).report()
                report.figures["seconds until all had ended"] = round(progress.calm)
            progress.say("done")
        finally:
            log.close()
            shutil.copytree(stack.home.path / "logs", options.folder / "logs", dirs_exist_ok=True)
            shutil.copy(stack.output, options.folder / "logs" / "up.out")
    write(options, world, striker, report)
    return striker, report


def disturb(progress: Progress) -> None:
    options, hits = progress.options, progress.options.hits()
    load = Load(progress.stack.port, progress.log, seed=options.seed, per_second=options.per_second)

    def announce(hit: Hit) -> None:
        if hit.at_seconds > options.seconds * HARMLESS_SHARE:
            load.harmless.set()
        progress.say(f"hit {hit.number}/{len(hits)}: {hit}")

    with load.running():
        progress.striker.run(hits, announce)
        progress.striker.wait_replaced(READY_SECONDS)
        progress.say("waiting for the clients' last answers")


def settle(progress: Progress) -> World:
    """Wait until every job has ended and its event was received; read the state then."""
    progress.say("waiting for the last jobs")
    stack, began = progress.stack, time.monotonic()
    with stack.engine() as engine:  # with its usual timeout
        wait_until_settled(engine, SETTLE_SECONDS)
        progress.calm = time.monotonic() - began
        stack.wait_ready(READY_SECONDS)
        rabbitmq = progress.options.broker == "rabbitmq"
        broker = EmbeddedRabbitMQ(stack.home.path).url() if rabbitmq else None
        world = read_world(engine, stack.port, broker)
    progress.say("waiting for the last events")
    ends = {job.id: job.status for job in world.jobs.values() if job.finished_at}
    progress.listener.wait_for(ends, EVENT_SECONDS)
    return world


def write(options: ChaosOptions, world: World, striker: Striker, report: Findings) -> None:
    """The rows that the judge saw, one per line, and the report."""
    with (options.folder / "jobs.jsonl").open("w") as file:
        for job in world.jobs.values():
            attempts = [asdict(attempt) for attempt in world.attempts.get(job.id, ())]
            file.write(json.dumps({**asdict(job), "attempts": attempts}) + "\n")
    document = {
        "seed": options.seed,
        "seconds": options.seconds,
        "targets": options.targets,
        "broker": options.broker,
        "ok": report.ok,
        "kills": kills(striker),
        "figures": report.figures,
        "faults": report.faults,
        "strikes": [strike.as_dict() for strike in striker.strikes],
    }
    (options.folder / "report.json").write_text(json.dumps(document, indent=1) + "\n")


def kills(striker: Striker) -> int:
    return sum(strike.hit.act is Act.KILL and bool(strike.pids) for strike in striker.strikes)
