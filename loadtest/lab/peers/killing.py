"""What is lost when a worker is killed -9 in the middle of its work, and another is started.

All contenders are killed at the same time: nothing here is a rate. A job counts as done when its
task has run to the end at least once, by the witness file; the contender's own state of the job
does not count.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
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
    name: str
    survival: Survival
    #: From the kill to the last job that came back; includes the start of the new worker.
    seconds: float


def kill_workers(contenders: Mapping[Contender, bool], plan: Plan) -> list[Killed]:
    """Open them all, kill each one's workers at work, start new ones, count; they stay open.

    The flag says whether a contender's interrupted jobs are to come back automatically.
    """
    base = int(time.time()) * 1000
    numbers = range(base, base + plan.kill_jobs)
    for who in contenders:
        if not who.is_open:
            who.open()
    killed_at = {who: strike(who, numbers) for who in contenders}
    for who in contenders:
        # One more job, behind all others: when it starts, the new workers have seen them all.
        with Client(who.port) as client:
            client.ask(who.single("peer.mark", base - 1))
        await_start(who, base - 1, 0)

    def result(who: Contender) -> Killed:
        lines = [line for line in read_lines(who.witness) if line.number in numbers]
        last = max((line.at for line in lines), default=0.0)
        survived = survival(numbers, lines, killed_at[who])
        return Killed(who.name, survived, max(0.0, last - killed_at[who]))

    def all_back() -> bool:
        return not any(comes and result(who).survival.lost for who, comes in contenders.items())

    await_quiet(list(contenders), plan.quiet_seconds, all_back)
    return [result(who) for who in contenders]


def strike(who: Contender, numbers: range) -> float:
    """Promise jobs, start workers, kill them when some jobs have ended, start new ones; when."""
    size = max(1, len(numbers) // 10)
    ended = ends_in(who.witness)
    firsts = range(numbers.start, numbers.stop, size)
    # All of them wait before the first one runs: every slot is busy at the time of the kill.
    post(who, [who.batch("peer.mark", first, size, JOB_MS) for first in firsts])
    who.work()
    what = f"{who.name} to run something"
    until(lambda: ended() >= SHARE * len(numbers), PATIENCE_SECONDS, what, LOOK_SECONDS)
    who.kill_workers()
    killed_at = time.time()
    who.work()
    return killed_at


def await_quiet(
    contenders: Sequence[Contender], seconds: float, all_back: Callable[[], bool]
) -> None:
    """Wait until no witness file has grown for so long, and what is to come back has."""
    seen: list[int] = []
    since = 0.0

    def over() -> bool:
        nonlocal seen, since
        now, lengths = time.monotonic(), [who.witness_bytes() for who in contenders]
        if lengths != seen:
            seen, since = lengths, now
        return now - since >= seconds and all_back()

    until(over, PATIENCE_SECONDS)
