"""A broker that confirms late or not at all for a while: what it was sent is there all the same."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Row

from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from loadtest.chaos.slow_link import SlowLink
from loadtest.figures import family
from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from tests.support.commands import SCHEDULER, command, worker
from tests.support.database_fixture import DatabaseFixture

#: Twice as long as a publisher waits.
DELAY_SECONDS = 1.0
#: Ten slots do a hundred of them a second: the jobs are the bottleneck, not the machine.
JOBS, JOB_SECONDS = 300, 0.1
LEAST_SHARE = 0.8


class SlowBroker:
    """A scheduler behind a slow link and a worker of the pool medium beside it."""

    def __init__(self, database: DatabaseFixture, link: SlowLink, logs: Path) -> None:
        self.database = database
        self.link = link
        self._logs = logs

    def submit(self, jobs: int, seconds: float = JOB_SECONDS) -> list[str]:
        payload = json.dumps({"seconds": seconds})
        items = [Submission(new_id(), 1, "sleep", "medium", payload) for _ in range(jobs)]
        admit_group(self.database.engine, [SubmissionGroup(tuple(items))], express=False)
        return [item.id for item in items]

    def wait_ended(self, ids: list[str], seconds: float, most_dispatches: int = 1) -> None:
        """Until all of them have succeeded, each of them run once."""
        deadline = time.monotonic() + seconds
        rows = self._rows(ids)
        while any(row.status != "succeeded" for row in rows):
            assert time.monotonic() < deadline, self._describe(rows)
            time.sleep(0.02)
            rows = self._rows(ids)
        assert {(row.attempt, row.crashes) for row in rows} == {(1, 0)}
        assert max(row.lease for row in rows) <= most_dispatches

    def jobs_per_second(self) -> float:
        began = time.monotonic()
        self.wait_ended(self.submit(JOBS), 60)
        return JOBS / (time.monotonic() - began)

    def _rows(self, ids: list[str]) -> Sequence[Row[Any]]:
        return self.database.query("SELECT * FROM jobs WHERE id = ANY (%s::uuid[])", ids)

    def _describe(self, rows: Sequence[Row[Any]]) -> str:
        states = dict(Counter(row.status for row in rows))
        leases = max(row.lease for row in rows)
        logs = "\n".join(log.read_text()[-3000:] for log in self._logs.glob("*.log"))
        return f"{states}, up to {leases} dispatches each\n{logs}"


@pytest.fixture
def broker(
    database: DatabaseFixture, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> Iterator[SlowBroker]:
    env = {
        "FAIRLINE_DATABASE_URL": database.engine.url.render_as_string(hide_password=False),
        "FAIRLINE_BROKER_URL": rabbitmq.service.url(),
        "FAIRLINE_QUEUE_TYPE": "classic",
        "PYTHONPATH": ".",
    }
    port = rabbitmq.service.ports["amqp"]
    database.leader.resign()
    with SlowLink("127.0.0.1", port) as link:
        slow = {**env, "FAIRLINE_BROKER_URL": f"amqp://guest:guest@127.0.0.1:{link.port}//"}
        with (
            command(SCHEDULER, slow, tmp_path / "scheduler.log"),
            command(worker("medium"), env, tmp_path / "worker.log"),
        ):
            started = SlowBroker(database, link, tmp_path)
            started.wait_ended(started.submit(20), 40)
            yield started


def test_late_confirms_cost_hardly_any_throughput(broker: SlowBroker) -> None:
    quick = broker.jobs_per_second()
    broker.link.delay_seconds = DELAY_SECONDS
    broker.wait_ended(broker.submit(20), 20)
    late = broker.jobs_per_second()
    assert late > LEAST_SHARE * quick, f"{late:.0f} instead of {quick:.0f} jobs per second"


def test_connection_is_opened_over_a_slow_link(broker: SlowBroker) -> None:
    broker.link.delay_seconds = DELAY_SECONDS
    broker.link.cut()
    # Once in vain, before it was noticed.
    broker.wait_ended(broker.submit(20), 20, most_dispatches=2)


def test_broker_that_pauses_for_three_seconds_loses_nothing(
    broker: SlowBroker, rabbitmq: Running[EmbeddedRabbitMQ]
) -> None:
    ids = broker.submit(JOBS)
    paused = list(family([child.pid for child in rabbitmq.children]))
    for process in paused:
        process.suspend()
    try:
        time.sleep(3.0)
    finally:
        for process in paused:
            process.resume()
    broker.wait_ended(ids, 20)
