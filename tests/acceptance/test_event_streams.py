"""A thousand open streams, every API process replaced: each client hears the end of its job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta

import psutil
import pytest

from app.stack.spec import PROJECT_ROOT
from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from tests.acceptance.client import Client

pytestmark = pytest.mark.long

STREAMS = 1000
MOST_BYTES_A_STREAM = 100_000

#: The schedule is moved, not the state: the scheduler promotes them as it does any other.
MAKE_DUE = "UPDATE jobs SET execute_at = now() WHERE id = ANY (%s::uuid[]) RETURNING id"


@pytest.mark.timeout(120)
def test_thousand_streams_hear_every_end_across_a_restart_of_the_api(client: Client) -> None:
    tomorrow = datetime.now(UTC) + timedelta(days=1)
    jobs = tuple(
        Submission(new_id(), 1, "sleep", "medium", '{"seconds":0}', execute_at=tomorrow)
        for _ in range(STREAMS)
    )
    admit_group(client.engine, [SubmissionGroup(jobs)], express=False)
    ids = [job.id for job in jobs]
    before = resident_bytes(client)
    with crowd(client.stack.port, ids) as listeners:
        assert listeners.stdout is not None
        assert listeners.stdout.readline() == "open\n", client.stack.logs()
        each = (resident_bytes(client) - before) / STREAMS
        busy = busy_share(client, seconds=1.0)
        print(f"{each / 1000:.1f} kB a stream; {busy:.1%} of a core for {STREAMS} idle ones")
        assert each < MOST_BYTES_A_STREAM

        client.rows(MAKE_DUE, ids)
        client.stack.wait(
            lambda: client.count(ids, "succeeded") > STREAMS // 4, "a quarter of the jobs", 30
        )
        first, second = client.stack.api_workers()
        os.kill(first, signal.SIGKILL)
        os.kill(second, signal.SIGTERM)
        heard = json.loads(listeners.stdout.readline())

    assert heard["ends"] == dict.fromkeys(ids, "succeeded")
    assert heard["fed"] == dict.fromkeys(ids, 1), "each end once, none missed"
    assert set(heard["answers"]) <= {"0", "200"}, f"some were turned away: {client.stack.logs()}"
    assert heard["answers"]["200"] > STREAMS + 1, "some had to come back"
    assert not {first, second} & set(client.stack.api_workers())


@contextmanager
def crowd(port: int, ids: list[str]) -> Iterator[subprocess.Popen[str]]:
    """Listeners to these jobs, in a process of their own."""
    listeners = subprocess.Popen(
        (sys.executable, "-m", "tests.acceptance.event_clients", str(port)),
        cwd=PROJECT_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert listeners.stdin is not None
    with listeners:
        try:
            listeners.stdin.write("\n".join(ids))
            listeners.stdin.close()
            yield listeners
        finally:
            listeners.kill()


def processes(client: Client) -> list[psutil.Process]:
    return [psutil.Process(pid) for pid in client.stack.api_workers()]


def resident_bytes(client: Client) -> int:
    """Memory of all API processes together."""
    return sum(process.memory_info().rss for process in processes(client))


def busy_share(client: Client, seconds: float) -> float:
    """Processor time of the API processes, as a share of one core."""

    def spent() -> float:
        times = [process.cpu_times() for process in processes(client)]
        return sum(one.user + one.system for one in times)

    began = spent()
    time.sleep(seconds)
    return (spent() - began) / seconds
