"""A scheduler behind a slow link to a real RabbitMQ, and workers beside it, as processes."""

from __future__ import annotations

import json
import os
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from app.stack.rabbitmq import EmbeddedRabbitMQ
from loadtest.fleet import QUEUE_TYPE
from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from models.pools import POOLS
from tests.support.commands import SCHEDULER, command, worker
from tests.support.database_fixture import DatabaseFixture
from tests.support.rabbitmq_nodes import with_address
from tests.support.slow_link import SlowLink


class BrokerStack:
    """What a test does with the processes."""

    def __init__(self, database: DatabaseFixture, link: SlowLink, logs: Path) -> None:
        self.database = database
        self.link = link
        self.workers: list[int] = []
        self._logs = logs

    def submit(
        self, jobs: int, seconds: float, pool: str = "medium", type_name: str = "sleep"
    ) -> list[str]:
        """Jobs that sleep, or of another type, all of them queued; their ids."""
        payload = json.dumps({"seconds": seconds})
        items = [Submission(new_id(), 1, type_name, pool, payload) for _ in range(jobs)]
        admit_group(self.database.engine, [SubmissionGroup(tuple(items))], express=False)
        return [item.id for item in items]

    def wait_ended(self, ids: Sequence[str], seconds: float, most_dispatches: int = 1) -> None:
        """Until all of them have succeeded, each of them run once."""
        deadline = time.monotonic() + seconds
        rows = self.rows(ids)
        while any(row.status != "succeeded" for row in rows):
            assert time.monotonic() < deadline, self._describe(rows)
            time.sleep(0.02)
            rows = self.rows(ids)
        assert {(row.attempt, row.crashes) for row in rows} == {(1, 0)}
        assert max(row.lease for row in rows) <= most_dispatches

    @contextmanager
    def frozen_workers(self) -> Iterator[None]:
        """Workers that are stopped, and go on after the block."""
        for pid in self.workers:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in self.workers:
                os.kill(pid, signal.SIGCONT)

    def wait(self, condition: Callable[[], bool], what: str, seconds: float = 20.0) -> None:
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, f"waited in vain for {what}"
            time.sleep(0.02)

    def count(self, ids: Sequence[str], status: str) -> int:
        """How many of the jobs are in that state."""
        return sum(row.status == status for row in self.rows(ids))

    def rows(self, ids: Sequence[str]) -> Sequence[Row[Any]]:
        """The jobs."""
        return self.database.query("SELECT * FROM jobs WHERE id = ANY (%s::uuid[])", list(ids))

    def log(self) -> str:
        """What the processes have written."""
        return "\n".join(log.read_text() for log in self._logs.glob("*.log"))

    def _describe(self, rows: Sequence[Row[Any]]) -> str:
        states = dict(Counter((row.pool, row.status) for row in rows))
        leases = max(row.lease for row in rows)
        logs = "\n".join(log.read_text()[-3000:] for log in self._logs.glob("*.log"))
        return f"{states}, up to {leases} dispatches each\n{logs}"


@contextmanager
def broker_stack(
    database: DatabaseFixture, rabbitmq: EmbeddedRabbitMQ, logs: Path, *pools: str
) -> Iterator[BrokerStack]:
    """A scheduler and a worker of each pool, which has run a few jobs already."""
    env = {
        "FAIRLINE_DATABASE_URL": database.engine.url.render_as_string(hide_password=False),
        "FAIRLINE_BROKER_URL": rabbitmq.url(),
        "FAIRLINE_QUEUE_TYPE": QUEUE_TYPE,
        "PYTHONPATH": ".",
    }
    database.leader.resign()
    with SlowLink("127.0.0.1", rabbitmq.ports["amqp"]) as link, ExitStack() as processes:
        slow = {**env, "FAIRLINE_BROKER_URL": with_address(rabbitmq, f"127.0.0.1:{link.port}")}
        processes.enter_context(command(SCHEDULER, slow, logs / "scheduler.log"))
        started = BrokerStack(database, link, logs)
        for pool in pools:
            argv = worker(pool, POOLS[pool].slots, POOLS[pool].concurrency)
            process = processes.enter_context(command(argv, env, logs / f"{pool}.log"))
            started.workers.append(process.pid)
        for pool in pools:
            started.wait_ended(started.submit(20, 0.1, pool), 90)
        yield started
