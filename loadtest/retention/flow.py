"""Jobs on their way: what each part costs PostgreSQL, and how long the parts take meanwhile.

Jobs are admitted, dispatched, claimed and settled by the product's own statements, at a steady rate
by the clock, so that statements are planned as often as they would be.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from sqlalchemy import Engine

from loadtest.figures import cpu_seconds, percentile
from loadtest.fleet import database, rows
from loadtest.snapshot import GROUP, PARTS, Bench, Session
from models.jobs.settle import Ending
from models.jobs.states import JobStatus
from models.presence import PRESENCE_SECONDS

#: No statement is given up.
STATEMENT_SECONDS = 7_200.0
#: Turns before the measurement: the first ones meet cold buffers and statements without a plan.
WARM_TURNS = 50
#: Turns after a pause, in which the lease was lost and lanes are looked for anew.
RESUMED_TURNS = 5
#: Loads take turns so often: other work of the machine is to disturb them alike.
ROUNDS = 3
PAYLOAD = f'{{"candidate": "somebody", "role": "engineer", "text": "{"0123456789abcdef" * 33}"}}'
RESULT = f'{{"score": 87.5, "rationale": "{"0123456789abcdef" * 12}"}}'
SUCCESS = Ending(JobStatus.SUCCEEDED, tries_spent=1, result=RESULT)
#: Parts that the bar is about: what every job needs.
OF_EACH = ("admit", "dispatch", "claim", "settle")

#: The second: whole pages in it, each with its first change after a checkpoint.
READ_WAL = """
    SELECT pg_current_wal_insert_lsn() - '0/0'::pg_lsn AS bytes, wal_fpi AS pages FROM pg_stat_wal
"""


class TimedSession(Session):
    """A session that also notes how long its calls took, in milliseconds."""

    def __init__(self, engine: Engine) -> None:
        super().__init__(engine)
        self.took: list[float] = []

    def measured(self, call: Callable[[], object]) -> None:
        began = time.perf_counter()
        super().measured(call)
        self.took.append((time.perf_counter() - began) * 1e3)


@dataclass(frozen=True, slots=True)
class Flow:
    """A stretch of load."""

    jobs: int
    seconds: float
    #: CPU time of the sessions per job, in microseconds, by part.
    cost: dict[str, float]
    #: Milliseconds of each dispatch, and of each turn: a group from its admission to its end.
    dispatches: list[float] = field(repr=False)
    turns: list[float] = field(repr=False)
    #: CPU time of the whole server, in seconds, and bytes of its WAL with the whole pages in it.
    server_cpu: float
    wal: int
    wal_pages: int

    @property
    def per_job(self) -> float:
        """CPU time of what every job needs, in microseconds."""
        return sum(self.cost[part] for part in OF_EACH)

    def figures(self) -> dict[str, float]:
        """What the report has of it."""
        found = {"jobs": self.jobs, "per_second": self.jobs / self.seconds, **self.cost}
        for name, values in (("turn", self.turns), ("dispatch", self.dispatches)):
            shares = {"p50": 0.5, "p99": 0.99, "max": 1.0}
            found |= {f"{name}_{key}_ms": percentile(values, of) for key, of in shares.items()}
        cpu, wal = self.server_cpu / self.jobs * 1e6, self.wal / self.jobs
        pages = self.wal_pages / self.jobs
        return {**found, "server_cpu": cpu, "wal_bytes": wal, "wal_pages": pages}


class Load:
    """A steady load on one database."""

    def __init__(
        self, sessions: dict[str, TimedSession], pids: Sequence[int], per_second: float
    ) -> None:
        self._sessions, self._pids = sessions, pids
        self._every = GROUP / per_second
        self.bench = Bench(sessions, per_second=per_second, payload=PAYLOAD, ending=SUCCESS)
        for _ in range(WARM_TURNS):
            self.bench.turn()

    def run(self, seconds: float, busy: Callable[[], bool] = lambda: False) -> Flow:
        """Load for so long, and then for as long as something else is ``busy``."""
        self.bench.report()  # it may have been silent for long
        for _ in range(RESUMED_TURNS):
            self.bench.turn()
        for session in self._sessions.values():
            session.take()
            session.took.clear()
        began, jobs, turns = time.monotonic(), 0, list[float]()
        cpu, (wal, pages) = cpu_seconds(self._pids), self._read_wal()
        due = reported = began
        while busy() or time.monotonic() < began + seconds:
            time.sleep(max(0.0, due - time.monotonic()))
            # Behind the clock it does not catch up: that would be another load.
            due = max(due + self._every, time.monotonic())
            # By the clock: on a busy machine that of the bench is behind, and the lease would end.
            if time.monotonic() >= reported + PRESENCE_SECONDS:
                reported = time.monotonic()
                self.bench.report()
            turned = time.perf_counter()
            jobs += self.bench.turn()
            turns.append((time.perf_counter() - turned) * 1e3)
        jobs, (wal_now, pages_now) = max(1, jobs), self._read_wal()
        return Flow(
            jobs,
            time.monotonic() - began,
            {part: session.take() / jobs for part, session in self._sessions.items()},
            list(self._sessions["dispatch"].took),
            turns,
            cpu_seconds(self._pids) - cpu,
            wal_now - wal,
            pages_now - pages,
        )

    def _read_wal(self) -> tuple[int, int]:
        [row] = rows(self._sessions["fold"].engine, READ_WAL)
        return int(row.bytes), int(row.pages)


@contextmanager
def loaded(url: str, pids: Sequence[int], per_second: float) -> Iterator[Load]:
    """A load whose first turns are over; ``pids``: the server's."""
    with ExitStack() as stack:
        sessions = {
            part: TimedSession(stack.enter_context(database(url, STATEMENT_SECONDS)))
            for part in PARTS
        }
        load = Load(sessions, pids, per_second)
        yield load
        load.bench.leader.resign()


def take_turns(loads: Sequence[Load], seconds: float) -> list[Flow]:
    """Each load for so long, in turn with the others."""
    rounds = [[load.run(seconds / ROUNDS) for load in loads] for _ in range(ROUNDS)]
    return [together(flows) for flows in zip(*rounds, strict=True)]


def together(flows: Sequence[Flow]) -> Flow:
    """Several stretches of a load as one."""
    jobs = sum(flow.jobs for flow in flows)
    return Flow(
        jobs,
        sum(flow.seconds for flow in flows),
        {part: sum(flow.cost[part] * flow.jobs for flow in flows) / jobs for part in flows[0].cost},
        [one for flow in flows for one in flow.dispatches],
        [one for flow in flows for one in flow.turns],
        sum(flow.server_cpu for flow in flows),
        sum(flow.wal for flow in flows),
        sum(flow.wal_pages for flow in flows),
    )
