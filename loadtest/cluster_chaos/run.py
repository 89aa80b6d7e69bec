"""One chaos run on a cluster: load, probes and faults at the same time, then the judge."""

from __future__ import annotations

import json
import logging
import shutil
import signal
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from app.stack.ports import free_ports
from app.stack.spec import StackError
from loadtest.chaos.client import Listener
from loadtest.chaos.facts import World, pid_of, read_world, wait_until_settled
from loadtest.chaos.judge import Findings, Judge
from loadtest.chaos.load import ExchangeLog, Load
from loadtest.chaos.stack import EVERY_POOL
from loadtest.chaos.witness import VARIABLE, read_lines
from loadtest.cluster.cluster import Cluster, NotInTime, new_cluster
from loadtest.cluster.layout import NUMBERS
from loadtest.cluster.machine import number_inside
from loadtest.cluster.network import entered
from loadtest.cluster_chaos.faults import FAULTS
from loadtest.cluster_chaos.gaps import Outage, gaps, longest, own_seconds
from loadtest.cluster_chaos.plan import (
    COSTS_LEASES,
    PlannedFault,
    each_kind,
    engine_faults,
    process_faults,
)
from loadtest.cluster_chaos.probes import Probes
from loadtest.figures import family
from loadtest.fleet import NotReady, database

logger = logging.getLogger(__name__)

#: After a fault nothing may be missing for longer than this, on a busy machine.
BACK_SECONDS = 240.0
#: Between two faults of engines, so that their gaps can be told apart.
CALM_SECONDS = 4.0
#: Every job must have ended so long after the last fault.
SETTLE_SECONDS = 180.0
EVENT_SECONDS = 60.0
#: No job that kills its worker is submitted after this part of a run.
HARMLESS_SHARE = 0.6


@dataclass(frozen=True, slots=True)
class ClusterChaosOptions:
    seed: int
    seconds: float
    #: Where the logs, the faults and the report go.
    folder: Path
    #: Where Patroni is installed, and the folder of RabbitMQ's commands.
    patroni: Path
    rabbitmq: Path
    per_second: float = 6.0
    #: Every kind of fault of engines and machines so often, and nothing else.
    each: int = 0


@dataclass(slots=True)
class Fault:
    """A fault as it happened. Times are in seconds since the epoch."""

    planned: PlannedFault
    #: The machine.
    where: str
    at: float
    #: When it was undone, and when all members were back.
    until: float | None = None
    back: float | None = None
    #: Processes of Fairline that were hit, by their numbers inside.
    pids: tuple[int, ...] = ()

    def may_lose(self, worker: str) -> bool:
        """Whether a process may have lost its runs to it."""
        if self.planned.target:
            return f"@{self.where}:" in worker and pid_of(worker) in self.pids
        return self.planned.kind in COSTS_LEASES

    def may_delay(self, worker: str) -> bool:
        """Whether a process may have lost its leases and gone on."""
        return self.may_lose(worker) and self.planned.kind != "killed"


@dataclass(slots=True)
class ClusterRun:
    """A run in progress, for whatever displays it; at the end, what was found."""

    options: ClusterChaosOptions
    cluster: Cluster
    log: ExchangeLog
    watch: Callable[[ClusterRun], None]
    now: str = "starting"
    began: float = field(default_factory=time.monotonic)
    _wall: float = field(default_factory=time.time)
    faults: list[Fault] = field(default_factory=list)
    #: Between which moments standbys were promoted.
    promotions: list[tuple[float, float]] = field(default_factory=list)
    #: Faults that could not be done, and those after which something was missing for long.
    failed: list[str] = field(default_factory=list)
    incomplete: list[str] = field(default_factory=list)
    outages: list[Outage] = field(default_factory=list)
    findings: Findings = field(default_factory=Findings)

    def say(self, words: str) -> None:
        self.now = words
        self.watch(self)

    @property
    def seconds(self) -> float:
        return time.monotonic() - self.began

    @property
    def clock_jump(self) -> float:
        """By how much this machine's clock was set, as after a pause of a virtual machine."""
        return time.time() - self._wall - self.seconds


def run(
    options: ClusterChaosOptions, watch: Callable[[ClusterRun], None] = lambda _: None
) -> ClusterRun:
    """A cluster, broken under load; what the judge found."""
    witness = options.folder / "witness.jsonl"
    settings = {k: v for k, v in EVERY_POOL.items() if k.startswith("FAIRLINE_")}
    with started(options, {**settings, VARIABLE: str(witness)}) as cluster:
        log = ExchangeLog(options.folder / "client.jsonl")
        progress = ClusterRun(options, cluster, log, watch)
        # Clients, probes and the judge are beside the front, where everything can be reached.
        with entered(cluster.front.supervisor_pid):
            probes, listener = Probes(cluster, log), Listener(cluster.layout.port)
            with listener.listening():
                listener.placed.wait(BACK_SECONDS)
                with probes.running():
                    disturb(progress)
                world = settle(progress, listener)
            log.close()
            seen = (read_lines(witness), listener.ends, progress.promotions)
            progress.findings = Judge(log.exchanges, world, progress.faults, *seen).report()
            progress.findings.figures["promotions of a standby"] = len(progress.promotions)
        progress.findings.faults["not whole again"] = progress.incomplete
        progress.outages = outages(progress.faults, progress.promotions, probes, world)
        progress.say("done")
        write(progress, world)
        return progress


@contextmanager
def started(options: ClusterChaosOptions, settings: dict[str, str]) -> Iterator[Cluster]:
    """A cluster of its own; its logs are kept."""
    folder = Path(tempfile.mkdtemp(prefix="fairline-cluster-chaos-"))
    (port,) = free_ports(1)
    cluster = new_cluster(folder, port, options.patroni, options.rabbitmq, settings)
    try:
        cluster.start()
        yield cluster
    finally:
        cluster.stop()
        for logs in folder.glob("machine-*/logs"):
            shutil.copytree(logs, options.folder / logs.parent.name, dirs_exist_ok=True)
        shutil.rmtree(folder, ignore_errors=True)


def timeline(cluster: Cluster) -> int:
    """Grows by one with each promotion of a standby."""
    [[name]] = cluster.health.sql(
        "SELECT pg_walfile_name(pg_current_wal_lsn())", cluster.wait_for_leader()
    )
    return int(name[:8], 16)


def disturb(progress: ClusterRun) -> None:
    options = progress.options
    load = Load(
        progress.cluster.layout.port, progress.log, seed=options.seed, per_second=options.per_second
    )
    over = threading.Event()
    others = threading.Thread(target=disturb_processes, args=(progress, over), daemon=True)
    with load.running():
        time.sleep(CALM_SECONDS)
        if not options.each:
            others.start()
        try:
            disturb_engines(progress, load)
        finally:
            over.set()
            if others.is_alive():
                others.join()
        progress.say("waiting for the clients' last answers")


def disturb_engines(progress: ClusterRun, load: Load) -> None:
    """One fault after the other, until the time is over."""
    options = progress.options
    planned = each_kind(options.each, options.seed) if options.each else None
    for fault in planned or engine_faults(options.seed):
        if not planned and progress.seconds > options.seconds:
            break
        if progress.seconds > options.seconds * HARMLESS_SHARE:
            load.harmless.set()
        progress.say(str(fault))
        before, since = timeline(progress.cluster), time.time()
        disturb_engine(progress, fault)
        promoted = timeline(progress.cluster) - before
        progress.promotions += [(since, time.time())] * promoted


def disturb_engine(progress: ClusterRun, planned: PlannedFault) -> None:
    """One fault, and the wait until everything is as before."""
    cluster = progress.cluster
    fault = Fault(planned, "", time.time())
    progress.faults.append(fault)
    try:
        with FAULTS[planned.kind](cluster, planned.choice) as fault.where:
            time.sleep(planned.seconds)
    except (StackError, NotReady, psutil.Error, subprocess.SubprocessError) as error:
        progress.failed.append(f"{planned}: {str(error)[:300]}")
    fault.until = time.time()
    progress.say(f"after {planned}")
    try:
        cluster.wait(cluster.has_everything, BACK_SECONDS, "everything")
    except NotInTime:
        progress.incomplete.append(f"{planned} on {fault.where}")
    fault.back = time.time()
    time.sleep(CALM_SECONDS)


def disturb_processes(progress: ClusterRun, over: threading.Event) -> None:
    """Kill, freeze and restart Fairline's own processes, one after the other."""
    for fault in process_faults(progress.options.seed):
        if over.wait(fault.pause):
            return
        machine = progress.cluster.machines[NUMBERS[int(fault.choice * len(NUMBERS))]]
        name, _, part = fault.target.partition(" ")
        with suppress(StackError, psutil.Error, KeyError):
            process = psutil.Process(machine.processes()[name])
            if part:
                children = process.children()
                process = children[int(fault.choice * 97) % len(children)] if children else process
            disturb_process(progress, fault, process, machine.name, over)


def disturb_process(
    progress: ClusterRun,
    planned: PlannedFault,
    process: psutil.Process,
    where: str,
    over: threading.Event,
) -> None:
    struck = list(family([process.pid]))
    inside = tuple(number for one in struck if (number := number_inside(one.pid)))
    fault = Fault(planned, where, time.time(), pids=inside)
    match planned.kind:
        case "killed":
            process.kill()
        case "restarted":
            process.send_signal(signal.SIGTERM)
        case "frozen":
            for one in struck:
                with suppress(psutil.Error):
                    one.suspend()
    progress.faults.append(fault)
    over.wait(planned.seconds)
    if planned.kind == "frozen":
        for one in struck:
            with suppress(psutil.Error):
                one.resume()
    fault.until = time.time()


def settle(progress: ClusterRun, listener: Listener) -> World:
    """Wait until every job has ended and its event was received; read the state then."""
    progress.say("waiting for the last jobs")
    layout = progress.cluster.layout
    with database(layout.database_url()) as engine:
        wait_until_settled(engine, SETTLE_SECONDS)
        world = read_world(engine, layout.port, layout.broker_url())
    progress.say("waiting for the last events")
    ends = {job.id: job.status for job in world.jobs.values() if job.finished_at}
    listener.wait_for(ends, EVENT_SECONDS)
    return world


def outages(
    faults: list[Fault], promotions: list[tuple[float, float]], probes: Probes, world: World
) -> list[Outage]:
    """What each fault of an engine or a machine did to the engines and to the service."""
    commits, accepted = probes.postgres.ordered(), probes.accepted.ordered()
    queues = [moments.ordered() for moments in probes.rabbitmq.values()]
    ended = sorted(job.finished_at for job in world.jobs.values() if job.finished_at)
    found = []
    for fault in faults:
        if fault.until is None or fault.back is None:
            continue
        accepting = gaps(accepted, fault.at, fault.back)
        # A gap of the service may be over later: what the engines did until then counts.
        span = (fault.at, max(fault.back, accepting[-1].end))
        postgres = gaps(commits, *span)
        rabbitmq = [gap for each in queues for gap in gaps(each, *span)]
        longests = (longest(postgres), longest(rabbitmq), longest(accepting))
        own = own_seconds(accepting, [*postgres, *rabbitmq])
        when = (fault.at, fault.until, fault.back)
        ending = longest(gaps(ended, *span))
        promoted = any(since <= fault.at <= until for since, until in promotions)
        kind, where = fault.planned.kind, fault.where
        found.append(Outage(kind, where, *when, *longests, ending, own, promoted))
    return found


def write(progress: ClusterRun, world: World) -> None:
    """The rows that the judge saw, one per line, and the report."""
    folder = progress.options.folder
    with (folder / "jobs.jsonl").open("w") as file:
        for job in world.jobs.values():
            attempts = [asdict(attempt) for attempt in world.attempts.get(job.id, ())]
            file.write(json.dumps({**asdict(job), "attempts": attempts}) + "\n")
    document: dict[str, Any] = {
        "seed": progress.options.seed,
        "figures": progress.findings.figures,
        "broken": progress.findings.faults,
        "failed": progress.failed,
        "faults": [asdict(fault) for fault in progress.faults],
        "outages": [asdict(outage) for outage in progress.outages],
    }
    (folder / "report.json").write_text(json.dumps(document, indent=1) + "\n")
