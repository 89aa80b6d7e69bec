"""Carries out the plan: kills, freezes, thaws and restarts, each written down as it happens."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import Any

import psutil
from sqlalchemy import Engine

from loadtest.chaos.plan import Act, Hit
from loadtest.chaos.stack import Stack
from loadtest.fleet import until
from models.store.errors import StateStoreError
from models.store.session import connect

#: How each is asked to stop; PostgreSQL would wait for its clients after a SIGTERM.
STOP_SIGNALS = {"postgres": signal.SIGINT}
READ_BUSY = "SELECT DISTINCT worker FROM jobs WHERE status = 'running' AND worker IS NOT NULL"


def victims(stack: Stack, target: str) -> list[psutil.Process]:
    """Living processes of that kind, in a stable order; none between two lives."""
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


def family(leader: psutil.Process, target: str) -> list[psutil.Process]:
    """Who is hit together: a server frozen without its children would go on working."""
    if target in ("api", "long-child", "postgres-backend"):
        return [leader]
    with suppress(psutil.Error):
        return [leader, *leader.children(recursive=True)]
    return []


def busy_first(engine: Engine, found: list[psutil.Process]) -> list[psutil.Process]:
    """Those who run a job, or whose children do: there is more to lose. All, if nobody does."""
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
    """Whether it is a backend of PostgreSQL; the others are its household."""
    with suppress(psutil.Error, IndexError):
        return "fairline" in process.cmdline()[0]
    return False


#: A target that is between two lives is waited for so long; then the hit is a miss.
ABSENT_SECONDS = 8.0
#: How often the striker looks whether somebody is back.
LOOK_SECONDS = 0.2


@dataclass(slots=True)
class Strike:
    """A hit as it happened. Times are of the wall clock, to be read beside those of the rows."""

    hit: Hit
    #: Everybody who was hit: the children of a killed process die with it. None: a miss.
    pids: tuple[int, ...]
    at: float
    #: When a frozen process went on.
    until: float | None = None
    #: Seconds after a kill until another process was there.
    replaced: float | None = None
    #: Who was there before: whoever is not among them is new.
    before: frozenset[int] = frozenset()

    def told(self) -> dict[str, Any]:
        """For the report."""
        names = ("pids", "at", "until", "replaced")
        return {**asdict(self.hit), **{name: getattr(self, name) for name in names}}


@dataclass(slots=True)
class _Frozen:
    strike: Strike
    processes: list[psutil.Process]
    due: float


@dataclass(slots=True)
class Striker:
    """One run of the plan against one stack."""

    stack: Stack
    #: Tells who is busy; a state store that is away tells nothing.
    engine: Engine
    strikes: list[Strike] = field(default_factory=list)
    _frozen: list[_Frozen] = field(default_factory=list)
    #: Kills whose victims have no successor yet.
    _missed: list[Strike] = field(default_factory=list)

    def run(self, hits: Sequence[Hit], tell: Callable[[Hit], None]) -> None:
        """Hit after hit, each at its time; returns when the last one has been thawed."""
        began = time.monotonic()
        try:
            for hit in hits:
                tell(hit)
                self._rest(began + hit.at_seconds)
                self.strike(hit)
            while self._frozen:
                self._rest(min(one.due for one in self._frozen))
        finally:
            self.thaw_all()

    def wait_replaced(self, seconds: float) -> None:
        """Wait until everybody who was killed has a successor, or for so long."""

        def replaced() -> bool:
            self._look()
            return not self._missed

        until(replaced, seconds, pause=LOOK_SECONDS)

    def strike(self, hit: Hit) -> Strike:
        """Find the victim and hit it."""
        candidates = self._candidates(hit)
        strike = Strike(hit, (), time.time(), before=frozenset(one.pid for one in candidates))
        self.strikes.append(strike)
        if not candidates:
            return strike
        candidates = busy_first(self.engine, candidates)
        victim = candidates[int(hit.choice * len(candidates))]
        struck = family(victim, hit.target)
        with suppress(psutil.Error):
            match hit.act:
                case Act.KILL:
                    victim.kill()
                    self._missed.append(strike)
                case Act.RESTART:
                    victim.send_signal(STOP_SIGNALS.get(hit.target, signal.SIGTERM))
                case Act.FREEZE:
                    struck = self._freeze(strike, struck)
            strike.pids = tuple(process.pid for process in struck)
        return strike

    def thaw_all(self) -> None:
        """Let everybody go on, whatever the plan says."""
        for one in list(self._frozen):
            self._thaw(one)

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
        due = time.monotonic() + strike.hit.seconds
        self._frozen.append(_Frozen(strike, stopped, due))
        return stopped

    def _thaw(self, one: _Frozen) -> None:
        self._frozen.remove(one)
        held = {process for other in self._frozen for process in other.processes}
        for process in set(one.processes) - held:  # who was frozen twice sleeps on
            with suppress(psutil.Error):  # psutil knows if the pid is somebody else's by now
                process.resume()
        one.strike.until = time.time()

    def _rest(self, until: float) -> None:
        """Wait, and do meanwhile what falls due."""
        while True:
            now = time.monotonic()
            for one in [one for one in self._frozen if one.due <= now]:
                self._thaw(one)
            self._look()
            if now >= until:
                return
            time.sleep(min(LOOK_SECONDS, until - now))

    def _look(self) -> None:
        """Note who has been replaced: somebody of that kind is there who was not before."""
        for strike in list(self._missed):
            now = {process.pid for process in victims(self.stack, strike.hit.target)}
            if now - strike.before:
                strike.replaced = time.time() - strike.at
                self._missed.remove(strike)
