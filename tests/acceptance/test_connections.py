"""A worker needs two connections, and one that listens, whatever its concurrency, and holds none
while jobs run."""

from __future__ import annotations

import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from app.stack.programs import command
from app.stack.services import tail
from app.stack.spec import PROJECT_ROOT
from tests.acceptance.client import Client, new_role, scale
from tests.support.promises import ClientLog, Submitter

pytestmark = pytest.mark.long

#: Two that work, and one that listens.
MOST_CONNECTIONS = 2 + 1
#: A statement of a group commit takes a moment; a connection held by a job, as long as the job.
LONGEST_STATEMENT_SECONDS = 0.5
#: SQLAlchemy looks up a type in a transaction of a moment on every new connection.
LONGEST_START_SECONDS = 0.1

READ_CONNECTIONS = """
    SELECT application_name, state, extract(epoch FROM clock_timestamp() - state_change)::float8
    FROM pg_stat_activity WHERE application_name LIKE 'worker%%@%%'
"""


class Samples:
    """What pg_stat_activity showed of the workers, looked at again and again."""

    def __init__(self) -> None:
        self.taken = 0
        self.idle = 0
        self.most = 0
        #: Connections that a job could be holding.
        self.held: list[str] = []

    def take(self, client: Client) -> None:
        rows = client.rows(READ_CONNECTIONS)
        self.taken += 1
        self.most = max([self.most, *Counter(row[0] for row in rows).values()])
        self.idle += all(row[1] == "idle" for row in rows)
        for name, state, seconds in rows:
            # Who is just being let in has begun no statement.
            lasts, waits = seconds or 0.0, state.startswith("idle in transaction")
            if (waits and lasts > LONGEST_START_SECONDS) or (
                state != "idle" and lasts > LONGEST_STATEMENT_SECONDS
            ):
                self.held.append(f"{name} {state} for {seconds:.2f} s")

    def take_while_all_run(self, client: Client, ids: list[str], slots: int) -> None:
        """Look as long as every slot runs one of the jobs."""
        client.wait_running(ids, slots)
        # The rows say so a moment before the last job has begun; claims are still being written.
        time.sleep(0.3)
        while client.count(ids, "running") >= slots:
            self.take(client)
            time.sleep(0.02)

    def assert_frugal(self) -> None:
        assert self.taken > 20, f"only {self.taken} looks: the jobs did not run together"
        assert self.most <= MOST_CONNECTIONS, f"{self.most} connections of one process"
        assert not self.held, f"held while jobs run: {self.held[:5]}"


def test_ten_slots_share_three_connections(client: Client, tmp_path: Path) -> None:
    samples, log = Samples(), ClientLog(tmp_path / "promises.jsonl")
    with Submitter(client.stack.port, log, role=new_role(), per_second=40).running():
        until = time.monotonic() + 4
        while time.monotonic() < until:
            samples.take(client)
            time.sleep(0.02)
    log.close()
    samples.assert_frugal()

    quiet = Samples()
    ids = client.submit_sleeps(20, seconds=3.0)
    quiet.take_while_all_run(client, ids, slots=20)
    quiet.assert_frugal()
    assert quiet.idle > 0.9 * quiet.taken, "between heartbeats nobody speaks to PostgreSQL"
    client.wait_ended(ids)


def test_green_worker_takes_far_more_than_ten_messages_a_second(client: Client) -> None:
    scale(client.stack, "worker-medium", 1)
    client.wait_ended(client.submit_sleeps(20, seconds=0))
    began = time.monotonic()
    client.wait_ended(client.submit_sleeps(300, seconds=0))
    rate = 300 / (time.monotonic() - began)
    assert rate > 25, f"{rate:.0f} jobs a second, one message each"


@pytest.fixture
def big_worker(calm_client: Client, tmp_path: Path) -> Iterator[psutil.Process]:
    """A worker with a hundred slots, started by hand beside the stack and alone in its pool."""
    client = calm_client
    surroundings = psutil.Process(client.stack.pid("worker-medium-1")).environ()
    scale(client.stack, "worker-medium", 0)
    argv = ("celery", "-A", "app", "worker", "-P", "gevent", "-c", "100", "-Q", "medium")
    log = tmp_path / "big.log"
    with log.open("wb") as output:
        worker = subprocess.Popen(
            command(*argv, "-n", "worker-big@%h"),
            cwd=PROJECT_ROOT,
            env=surroundings,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    try:
        client.stack.wait(
            lambda: bool(
                client.rows("SELECT 1 FROM processes WHERE name LIKE %s", f"%:{worker.pid}")
            ),
            "the big worker to say that it is there",
            20,
        )
        yield psutil.Process(worker.pid)
    finally:
        worker.terminate()
        try:
            worker.wait(15)
        except subprocess.TimeoutExpired:
            worker.kill()
            worker.wait()
            pytest.fail(f"the big worker did not stop:\n{tail(log, 40)}")


def test_hundred_slots_share_three_connections(
    calm_client: Client, big_worker: psutil.Process
) -> None:
    client = calm_client
    ids = client.submit_sleeps(100, seconds=4.0)
    samples = Samples()
    samples.take_while_all_run(client, ids, slots=100)
    samples.assert_frugal()
    assert samples.idle > 0.8 * samples.taken
    rows = client.wait_ended(ids)
    assert {row.worker.rpartition(":")[2] for row in rows} == {str(big_worker.pid)}
