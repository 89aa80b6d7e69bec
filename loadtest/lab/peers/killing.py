"""What is lost when a worker is killed -9 in the middle of its work, and another is started.

All contenders go through it at the same time: nothing here is a rate. A job counts as done when its
task has run to the end at least once, by the witness; what the contender believes does not count.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

from loadtest.baselines.witness import read_lines
from loadtest.lab.experiment import Size
from loadtest.lab.peers.analysis import Survival, survival
from loadtest.lab.peers.contender import Contender, ends_in
from loadtest.lab.peers.turns import Caller, Stuck, await_start, post

JOB_MS = 20
#: The worker is killed when this share of the jobs has ended.
SHARE = 0.25
LOOK_SECONDS = 0.002
#: Nothing more happens after so long without a line from anybody.
QUIET_SECONDS = {Size.FULL: 3.0, Size.QUICK: 3.0, Size.MINI: 0.5}
#: How long lost work may take to come back; longer than every lease and heartbeat here.
PATIENCE_SECONDS = 40.0

JOBS = {Size.FULL: 500, Size.QUICK: 500, Size.MINI: 60}


@dataclass(frozen=True, slots=True)
class Killed:
    """One contender and what it made of the kill."""

    name: str
    survival: Survival
    #: From the kill to the last job that came back; includes the start of the new worker.
    seconds: float


@dataclass(slots=True)
class Victim:
    """A contender on its way through."""

    who: Contender
    #: Whether what the dead worker held comes back by itself.
    recovers: bool
    numbers: range
    killed_at: float = 0.0

    def lines_end(self) -> int:
        """How long the witness's file is."""
        return self.who.witness.stat().st_size if self.who.witness.exists() else 0

    def found(self) -> Survival:
        """What the witness says so far."""
        return survival(self.numbers, list(read_lines(self.who.witness)), self.killed_at)


def kill_workers(contenders: Sequence[tuple[Contender, bool]], size: Size) -> list[Killed]:
    """Open them all, kill each one's workers at work, start new ones, count; they stay open."""
    jobs = JOBS[size]
    base = int(time.time()) * 1000
    victims = [Victim(who, recovers, range(base, base + jobs)) for who, recovers in contenders]
    for victim in victims:
        if not victim.who.is_open:
            victim.who.open()
    for victim in victims:
        strike(victim)
    for victim in victims:
        await_turn(victim.who, base - 1)
    await_quiet(victims, QUIET_SECONDS[size])
    return [told(victim) for victim in victims]


def strike(victim: Victim) -> None:
    """Promise the jobs, start workers, kill them when some jobs have ended, start new ones."""
    who, jobs = victim.who, len(victim.numbers)
    size = max(1, jobs // 10)
    ended = ends_in(who.witness)
    requests = [
        who.batch("peer.mark", first, size, JOB_MS)
        for first in range(victim.numbers.start, victim.numbers.stop, size)
    ]
    # All of them wait before the first one runs: every slot is busy when the blow falls.
    post(who, requests)
    who.work()
    deadline = time.monotonic() + PATIENCE_SECONDS
    while ended() < SHARE * jobs:
        if time.monotonic() > deadline:
            raise Stuck(f"{who.name} runs nothing")
        time.sleep(LOOK_SECONDS)
    who.kill_workers()
    victim.killed_at = time.time()
    who.work()


def await_turn(who: Contender, number: int) -> None:
    """One more job, behind all others: when it starts, the new workers have seen them all."""
    with Caller(who.port) as caller:
        caller.ask(who.single("peer.mark", number))
    await_start(who, number, 0)


def await_quiet(victims: Sequence[Victim], quiet_seconds: float) -> None:
    """Wait until everybody has done all, or is not going to."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    silences = {victim.who.key: Silence(quiet_seconds) for victim in victims}
    while time.monotonic() < deadline:
        quiet = [silences[victim.who.key].lasts(victim.lines_end()) for victim in victims]
        if all(quiet) and not any(v.recovers and v.found().lost for v in victims):
            return
        time.sleep(0.1)


class Silence:
    """How long a file has not grown."""

    def __init__(self, enough_seconds: float) -> None:
        self._enough_seconds = enough_seconds
        self._length = -1
        self._since = 0.0

    def lasts(self, length: int) -> bool:
        """Whether it has been long enough, given how long the file is now."""
        if length != self._length:
            self._length, self._since = length, time.monotonic()
        return time.monotonic() - self._since >= self._enough_seconds


def told(victim: Victim) -> Killed:
    """The end of it."""
    last = max(
        (line.at for line in read_lines(victim.who.witness) if line.number in victim.numbers),
        default=victim.killed_at,
    )
    return Killed(victim.who.name, victim.found(), max(0.0, last - victim.killed_at))
