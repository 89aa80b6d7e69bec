"""Fault injection: carries out the planned hits, and records each."""

from __future__ import annotations

import logging
import signal
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
from sqlalchemy import Engine

from loadtest.chaos.facts import pid_of
from loadtest.chaos.faults import FAULTS, FaultFailed
from loadtest.chaos.plan import Act, Hit
from loadtest.chaos.stack import Stack
from loadtest.figures import family
from loadtest.fleet import until
from models.store.errors import StateStoreError
from models.store.session import connect

logger = logging.getLogger(__name__)

#: Stop signals; PostgreSQL would wait for its clients after a SIGTERM.
STOP_SIGNALS = {"postgres": signal.SIGINT}
READ_BUSY = "SELECT DISTINCT worker FROM jobs WHERE status = 'running' AND worker IS NOT NULL"


def victims(stack: Stack, target: str) -> list[psutil.Process]:
    """Live processes of that kind, in a stable order; none while it restarts."""
    with suppress(psutil.Error, KeyError):
        pids = stack.pids()
        match target:
            case "api":
                return children(pids["api"])
            case "long-child":
                return [child for pid in named(pids, "worker-long-") for child in children(pid)]
            case "postgres-backend":
                return [one for one in children(pids["postgres"]) if serves_a_client(one)]
            case "api-leader" | "rabbitmq" | "postgres":
                return [psutil.Process(pids[target.removesuffix("-leader")])]
        prefix = "scheduler-" if target == "scheduler" else f"worker-{target}-"
        return [psutil.Process(pid) for pid in named(pids, prefix)]
    return []


def busy_first(engine: Engine, found: list[psutil.Process]) -> list[psutil.Process]:
    """Those that run a job, or whose children do: there is more to lose. All, if none does."""
    try:
        with connect(engine) as connection:
            busy = {int(row[0].rpartition(":")[2]) for row in connection.exec_driver_sql(READ_BUSY)}
    except StateStoreError:
        return found
    chosen = []
    for process in found:
        with suppress(psutil.Error):
            if busy & {process.pid, *(child.pid for child in process.children())}:
                chosen.append(process)
    return chosen or found


def named(pids: dict[str, int], prefix: str) -> list[int]:
    """The processes whose names begin so, by name."""
    return [pid for name, pid in sorted(pids.items()) if name.startswith(prefix)]


def children(pid: int) -> list[psutil.Process]:
    """The children of a process, by age."""
    return sorted(psutil.Process(pid).children(), key=lambda child: child.pid)


def serves_a_client(process: psutil.Process) -> bool:
    """Whether it is a backend of PostgreSQL, and none of its auxiliary processes."""
    with suppress(psutil.Error, IndexError):
        return "fairline" in process.cmdline()[0]
    return False


#: How long to wait for a target that restarts; then the hit is a miss.
ABSENT_SECONDS = 8.0
#: Interval of the checks for replaced processes.
LOOK_SECONDS = 0.2


#: Without the database no worker can keep a lease. All can do without the others, and neither
#: locks nor anything that befalls the broker may cost a run.
SHARED = (
    *("postgres", "postgres-backend", "slow-postgres"),
    *("terminated-backends", "read-only", "full-disk"),
)


@dataclass(slots=True)
class Strike:
    """A hit as it happened. Times are in seconds since the epoch, as in the rows."""

    hit: Hit
    #: Every process that was hit: the children of a killed process die with it, a fault hits the
    #: server. None: a miss.
    pids: tuple[int, ...]
    at: float
    #: When a frozen process was resumed, or a fault ended.
    until: float | None = None
    #: Seconds after a kill until another process was there.
    replaced: float | None = None
    #: Processes that were there before: any other is new.
    before: frozenset[int] = frozenset()

    def may_lose(self, worker: str) -> bool:
        """Whether a process may have lost its runs to it."""
        return pid_of(worker) in self.pids or (bool(self.pids) and self.hit.target in SHARED)

    def may_delay(self, worker: str) -> bool:
        """Whether a process may have lost its leases and gone on."""
        frozen = pid_of(worker) in self.pids and self.hit.act is not Act.KILL
        return frozen or (bool(self.pids) and self.hit.target in SHARED)

    def as_dict(self) -> dict[str, Any]:
        names = ("pids", "at", "until", "replaced")
        return {**asdict(self.hit), **{name: getattr(self, name) for name in names}}


@dataclass(slots=True)
class Striker:
    """One run of the plan against one stack."""

    stack: Stack
    #: To find busy workers; if the database is away, none are known.
    engine: Engine
    strikes: list[Strike] = field(default_factory=list)
    #: Frozen processes: when to resume them, and why they are.
    _frozen: list[tuple[float, Strike, list[psutil.Process]]] = field(default_factory=list)
    #: Kills whose victims have not been replaced yet.
    _killed: list[Strike] = field(default_factory=list)
    _faults: list[threading.Thread] = field(default_factory=list)

    def run(self, hits: Sequence[Hit], announce: Callable[[Hit], None]) -> None:
        """Hit after hit, each at its time; returns when none lasts any longer."""
        began = time.monotonic()
        try:
            for hit in hits:
                announce(hit)
                self._rest(began + hit.at_seconds)
                self.strike(hit)
            while self._frozen:
                self._rest(min(due for due, _, _ in self._frozen))
        finally:
            self._resume(float("inf"))
            for one in self._faults:
                one.join()

    def wait_replaced(self, seconds: float) -> None:
        """Wait until every killed process has been replaced, or for so long."""

        def replaced() -> bool:
            self._note_replaced()
            return not self._killed

        until(replaced, seconds, pause=LOOK_SECONDS)

    def strike(self, hit: Hit) -> Strike:
        if hit.act is Act.FAULT:
            return self._begin_fault(hit)
        candidates = self._candidates(hit)
        strike = Strike(hit, (), time.time(), before=frozenset(one.pid for one in candidates))
        self.strikes.append(strike)
        if not candidates:
            return strike
        candidates = busy_first(self.engine, candidates)
        victim = candidates[int(hit.choice * len(candidates))]
        # A server frozen without its children would go on working.
        alone = hit.target in ("api", "long-child", "postgres-backend")
        struck = [victim] if alone else list(family([victim.pid]))
        with suppress(psutil.Error):
            match hit.act:
                case Act.KILL:
                    victim.kill()
                    self._killed.append(strike)
                case Act.RESTART:
                    victim.send_signal(STOP_SIGNALS.get(hit.target, signal.SIGTERM))
                case Act.FREEZE:
                    struck = self._freeze(strike, struck)
            strike.pids = tuple(process.pid for process in struck)
        return strike

    def _begin_fault(self, hit: Hit) -> Strike:
        strike = Strike(hit, (), time.time())
        self.strikes.append(strike)
        begun = threading.Event()

        def last() -> None:
            try:
                with FAULTS[hit.target](self.stack) as server:
                    strike.pids = (server,)
                    begun.set()
                    time.sleep(hit.seconds)
            except FaultFailed as error:
                logger.warning("%s: %s", hit.target, error)
            finally:
                strike.until = time.time()
                begun.set()

        self._faults.append(threading.Thread(target=last, name=hit.target))
        self._faults[-1].start()
        begun.wait(ABSENT_SECONDS)
        return strike

    def _candidates(self, hit: Hit) -> list[psutil.Process]:
        deadline = time.monotonic() + ABSENT_SECONDS
        while not (found := victims(self.stack, hit.target)) and time.monotonic() < deadline:
            self._rest(time.monotonic() + LOOK_SECONDS)
        return found

    def _freeze(self, strike: Strike, processes: list[psutil.Process]) -> list[psutil.Process]:
        stopped = []
        for process in processes:
            with suppress(psutil.Error):
                process.suspend()
                stopped.append(process)
        self._frozen.append((time.monotonic() + strike.hit.seconds, strike, stopped))
        return stopped

    def _resume(self, now: float) -> None:
        over = [one for one in self._frozen if one[0] <= now]
        self._frozen = [one for one in self._frozen if one[0] > now]
        # A process that was frozen twice stays so.
        kept = {process for _, _, processes in self._frozen for process in processes}
        for _, strike, processes in over:
            for process in set(processes) - kept:
                with suppress(psutil.Error):  # psutil notices if the pid was used again
                    process.resume()
            strike.until = time.time()

    def _rest(self, until: float) -> None:
        """Wait, and meanwhile do what is due."""
        while True:
            now = time.monotonic()
            self._resume(now)
            self._note_replaced()
            if now >= until:
                return
            time.sleep(min(LOOK_SECONDS, until - now))

    def _note_replaced(self) -> None:
        """Note which kills are over: a process of that kind is there that was not before."""
        for strike in list(self._killed):
            now = {process.pid for process in victims(self.stack, strike.hit.target)}
            if now - strike.before:
                strike.replaced = time.time() - strike.at
                self._killed.remove(strike)
