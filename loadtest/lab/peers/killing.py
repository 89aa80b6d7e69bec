"""What is lost when a worker is killed -9 in the middle of its work, and another is started.

All contenders are killed at the same time: nothing here is a rate. A job counts as done when its
task has run to the end at least once, by the witness file; the contender's own state of the job
does not count.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from loadtest.baselines.witness import Line, read_lines
from loadtest.closed_loop import Client
from loadtest.fleet import until
from loadtest.lab.peers.contender import Contender, ends_in
from loadtest.lab.peers.turns import Plan, await_start, post

JOB_MS = 20
#: The worker is killed when this share of the jobs has ended.
SHARE = 0.25
LOOK_SECONDS = 0.002
#: How long lost work may take to come back; longer than every lease and heartbeat here.
PATIENCE_SECONDS = 40.0


@dataclass(frozen=True, slots=True)
class Survival:
    """What became of jobs whose worker was killed."""

    promised: int
    #: Ran to their end at least once.
    done: int
    #: Ran to their end more than once.
    repeated: int
    #: Had begun when the worker was killed, and had not ended.
    interrupted: int

    @property
    def lost(self) -> int:
        """Accepted, and never run to the end."""
        return self.promised - self.done


def survival(promised: Iterable[int], lines: Sequence[Line], killed_at: float) -> Survival:
    """Count the witness's lines against the promised jobs."""
    numbers = set(promised)
    mine = [line for line in lines if line.number in numbers]
    ends = Counter(line.number for line in mine if line.what == "end")
    begun, ended = (
        {line.number for line in mine if line.what == what and line.at <= killed_at}
        for what in ("start", "end")
    )
    return Survival(
        promised=len(numbers),
        done=len(ends),
        repeated=sum(times > 1 for times in ends.values()),
        interrupted=len(begun - ended),
    )


@dataclass(frozen=True, slots=True)
class Killed:
    """One contender after the kill."""

    name: str
    survival: Survival
    #: From the kill to the last job that came back; includes the start of the new worker.
    seconds: float


@dataclass(slots=True)
class Victim:
    """A contender while its workers are killed."""

    who: Contender
    #: Whether what the dead worker held comes back by itself.
    recovers: bool
    numbers: range
    killed_at: float = 0.0

    def survival(self) -> Survival:
        """By the witness file so far."""
        return survival(self.numbers, list(read_lines(self.who.witness)), self.killed_at)

    def result(self) -> Killed:
        lines = read_lines(self.who.witness)
        last = max((line.at for line in lines if line.number in self.numbers), default=0.0)
        return Killed(self.who.name, self.survival(), max(0.0, last - self.killed_at))


def kill_workers(contenders: Sequence[tuple[Contender, bool]], plan: Plan) -> list[Killed]:
    """Open them all, kill each one's workers at work, start new ones, count; they stay open."""
    base = int(time.time()) * 1000
    numbers = range(base, base + plan.kill_jobs)
    victims = [Victim(who, recovers, numbers) for who, recovers in contenders]
    for victim in victims:
        if not victim.who.is_open:
            victim.who.open()
    for victim in victims:
        strike(victim)
    for victim in victims:
        await_turn(victim.who, base - 1)
    await_quiet(victims, plan.quiet_seconds)
    return [victim.result() for victim in victims]


def strike(victim: Victim) -> None:
    """Promise the jobs, start workers, kill them when some jobs have ended, start new ones."""
    who, jobs = victim.who, len(victim.numbers)
    size = max(1, jobs // 10)
    ended = ends_in(who.witness)
    requests = [
        who.batch("peer.mark", first, size, JOB_MS)
        for first in range(victim.numbers.start, victim.numbers.stop, size)
    ]
    # All of them wait before the first one runs: every slot is busy at the time of the kill.
    post(who, requests)
    who.work()
    what = f"{who.name} to run something"
    until(lambda: ended() >= SHARE * jobs, PATIENCE_SECONDS, what, LOOK_SECONDS)
    who.kill_workers()
    victim.killed_at = time.time()
    who.work()


def await_turn(who: Contender, number: int) -> None:
    """One more job, behind all others: when it starts, the new workers have seen them all."""
    with Client(who.port) as caller:
        caller.ask(who.single("peer.mark", number))
    await_start(who, number, 0)


def await_quiet(victims: Sequence[Victim], quiet_seconds: float) -> None:
    """Wait until all have ended their jobs, or are not going to."""
    seen: list[int] = []
    since = 0.0

    def over() -> bool:
        nonlocal seen, since
        now, lengths = time.monotonic(), [victim.who.witness_bytes() for victim in victims]
        if lengths != seen:
            seen, since = lengths, now
        quiet = now - since >= quiet_seconds
        return quiet and not any(each.recovers and each.survival().lost for each in victims)

    until(over, PATIENCE_SECONDS)
