"""``make bench-snapshot``: what a job costs PostgreSQL while a backup holds its snapshot open.

While a transaction is open, say that of a ``pg_dump``, no row version that it may see can be
removed. Jobs are admitted, dispatched, claimed and settled by the product's own statements, first
without and then with such a transaction, in groups as at 500 jobs per second. What counts is CPU
time of the PostgreSQL sessions, so that a busy machine does not disturb. What the scheduler does by
the clock is done as often per job as at that rate, however fast the machine is.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import NamedTuple

from rich.console import Console
from sqlalchemy import Engine

from app.reads.estimates import Estimates
from app.scheduler.dispatching.dispatcher import Dispatcher
from app.scheduler.dispatching.pool_queues import PoolQueues
from app.scheduler.dispatching.pools import Pools
from app.scheduler.dispatching.quotas import QuotaPacers
from app.scheduler.dispatching.reconciler import RECONCILE_SECONDS, ShareReconciler
from app.scheduler.maintenance.reaper import Reaper
from app.scheduler.role import TimedRole
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import running
from loadtest.dispatching import SLOTS, STATEMENT_SECONDS, Nowhere, filled
from loadtest.fleet import database
from loadtest.report import Report, Screen, at_most, command, table
from models.job_counts import FOLD_SECONDS, CountFolder
from models.jobs.admit import admit_group
from models.jobs.claim import JobRef, claim_group
from models.jobs.ids import new_id
from models.jobs.settle import Ending, Settlement, settle_group, settle_statement
from models.jobs.states import JobStatus
from models.jobs.submission import Submission, SubmissionGroup
from models.leadership import Leader
from models.presence import PRESENCE_SECONDS, Presence, announce
from tasks.registry import load_types, projections_of

PER_SECOND = 500
#: Jobs of a group: what gathers at that rate.
GROUP = 10
TENANTS = 5
#: Steps of a run that are measured apart.
STEPS = 6
WARM_JOBS = 1_000
#: Share of the run without a snapshot.
BEFORE = 0.25
MOST_RATIO = 1.3
#: What is measured, in the order of the table.
PARTS = ("admit", "dispatch", "claim", "settle", "reconcile", "reap", "fold")
SUCCESS = Ending(JobStatus.SUCCEEDED, tries_spent=1, result="{}")


class Step(NamedTuple):
    """A stretch of the run: CPU time of PostgreSQL per job, in microseconds."""

    name: str
    jobs: int
    cost: dict[str, float]


class Session:
    """A part's own database session, whose CPU time is read from the kernel."""

    def __init__(self, engine: Engine) -> None:
        self.engine = engine
        with engine.connect() as connection:
            pid = connection.exec_driver_sql("SELECT pg_backend_pid()").scalar_one()
        self._file = Path(f"/proc/{pid}/schedstat")
        self._used = 0.0

    def measured(self, call: Callable[[], object]) -> None:
        before = self._read()
        call()
        self._used += self._read() - before

    def take(self) -> float:
        """Microseconds since the last call."""
        used, self._used = self._used, 0.0
        return used

    def _read(self) -> float:
        return int(self._file.read_text().split()[0]) / 1e3


class Bench:
    """Jobs from their submission to their end, group by group."""

    def __init__(
        self,
        sessions: Mapping[str, Session],
        *,
        per_second: float = PER_SECOND,
        payload: str = "{}",
        ending: Ending = SUCCESS,
    ) -> None:
        self._sessions = sessions
        self._payload, self._ending = payload, ending
        self._turn_seconds = GROUP / per_second
        engine, types = sessions["dispatch"].engine, load_types()
        self.leader = leader = Leader(engine, "bench")
        folder = CountFolder(sessions["fold"].engine)
        queues = PoolQueues(engine, leader, folder)
        pacers = QuotaPacers(engine, leader, types)
        pools = Pools(engine, queues, pacers.allowances)
        estimates, self._broker = Estimates(engine), Nowhere()
        self._dispatcher = Dispatcher(engine, leader, self._broker, pools, estimates, pacers)
        shares = ShareReconciler(sessions["reconcile"].engine, leader, queues, estimates)
        reaper = Reaper(sessions["reap"].engine, leader, types)
        self._roles = {
            "reconcile": TimedRole(shares, RECONCILE_SECONDS),
            "reap": TimedRole(reaper, 1.0),
            "fold": TimedRole(folder, FOLD_SECONDS),
        }
        self._settle = settle_statement(projections_of(types.values()))
        self._now, self._report_due = 0.0, 0.0

    def run(self, jobs: int) -> int:
        """Run at least so many; how many."""
        done = 0
        while done < jobs:
            done += self.turn()
        return done

    def turn(self) -> int:
        """One group; how many jobs ended."""
        self._now += self._turn_seconds
        if self._now >= self._report_due:
            self.report()
        self._measured("admit", self._admit)
        for name, role in self._roles.items():
            if self._now >= role.due:
                role.due = self._now + role.every_seconds
                self._sessions[name].measured(partial(role.role.run_once, self._now))
        self._measured("dispatch", lambda _: self._dispatcher.run_once(self._now))
        refs = [JobRef(each.id, each.lease) for each in self._broker.sent]
        self._broker.sent.clear()
        for first in range(0, len(refs), GROUP):
            self._finish(tuple(refs[first : first + GROUP]))
        return len(refs)

    def report(self) -> None:
        """Renew the leader's lease, and report the worker."""
        self._report_due = self._now + PRESENCE_SECONDS
        self.leader.run_once(self._now)
        presence = Presence("worker", "worker", ["short"], slots=SLOTS)
        announce(self._sessions["claim"].engine, presence)

    def _measured(self, part: str, call: Callable[[Engine], object]) -> None:
        session = self._sessions[part]
        session.measured(lambda: call(session.engine))

    def _admit(self, engine: Engine) -> None:
        of = "echo", "short", self._payload
        jobs = [Submission(new_id(), 1 + n % TENANTS, *of) for n in range(GROUP)]
        admit_group(engine, [SubmissionGroup((each,)) for each in jobs], express=False)

    def _finish(self, refs: tuple[JobRef, ...]) -> None:
        self._measured("claim", lambda engine: claim_group(engine, "worker", [refs]))
        endings = [Settlement(ref, self._ending, 0.005) for ref in refs]
        self._measured(
            "settle", lambda engine: settle_group(engine, self._settle, "worker", endings)
        )


@contextmanager
def snapshot(url: str, seconds: float) -> Iterator[None]:
    """A transaction as ``pg_dump`` holds it."""
    with database(url, seconds) as engine, engine.connect() as connection:
        held = connection.execution_options(isolation_level="REPEATABLE READ")
        with held.begin():
            held.exec_driver_sql("SELECT count(*) FROM jobs")
            yield


def measure(url: str, jobs: int, screen: Screen) -> list[Step]:
    """The cost of each part, step by step."""
    with ExitStack() as stack:
        sessions = {
            part: Session(stack.enter_context(database(url, STATEMENT_SECONDS))) for part in PARTS
        }
        bench = Bench(sessions)

        def step(name: str, wanted: int) -> Step:
            for session in sessions.values():
                session.take()
            done = bench.run(wanted)
            return Step(name, done, {part: of.take() / done for part, of in sessions.items()})

        bench.run(WARM_JOBS)
        each = max(GROUP, jobs // STEPS)
        screen.task("without a snapshot", 1)
        steps = [step("before", max(GROUP, int(jobs * BEFORE)))]
        stack.enter_context(snapshot(url, 24 * 3600.0))
        steps += [
            step(f"after {each * (number + 1):,} jobs", each)
            for number in screen.steps(f"{jobs:,} jobs with a snapshot", STEPS)
        ]
    return steps


def judge(steps: list[Step]) -> Report:
    before, last = steps[0].cost, steps[-1].cost
    columns = {"snapshot open": "{.name}"} | {
        part: (lambda step, part=part: f"{step.cost[part]:.0f} µs") for part in PARTS
    }
    # A part may have cost nothing in a short run.
    ratios = {part: last[part] / max(before[part], 0.1) for part in PARTS}
    grown = ", ".join(f"{part} {ratio:.2f} x" for part, ratio in ratios.items())
    return Report(
        *("snapshot", "What a job costs PostgreSQL while a snapshot is held open"),
        findings=[f"Cost per job at the end, compared with before: {grown}."],
        tables=[table("CPU time of PostgreSQL per job", columns, steps)],
        bars=[at_most("cost of a dispatch, to before", ratios["dispatch"], MOST_RATIO, " x")],
        data={"steps": [step._asdict() for step in steps]},
    )


def run(chosen: argparse.Namespace, console: Console) -> Report:
    """On a private server."""
    jobs = int(chosen.minutes * 60 * PER_SECOND)
    with (
        tempfile.TemporaryDirectory(prefix="fairline-snapshot-") as home,
        running(EmbeddedPostgres(Path(home)), Path(home) / "logs") as started,
        Screen(console) as screen,
        filled(started.service, GROUP, TENANTS, 0.005) as engine,
    ):
        url = engine.url.render_as_string(hide_password=False)
        return judge(measure(url, jobs, screen))


FLAGS = (("--minutes", 1.0, "as many jobs as 500 per second are in so many minutes"),)

if __name__ == "__main__":
    sys.exit(command("make bench-snapshot", __doc__, run, *FLAGS))
