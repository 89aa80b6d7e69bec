"""The victim: a steady, polite client whose requests are timed, in a process of its own.

It submits a job, polls it twice and lists its jobs, on a few connections at a fixed pace. At the
end it writes what it noted, one line of JSON for each request.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from app.stack.spec import PROJECT_ROOT
from loadtest.chaos.client import Api
from loadtest.figures import percentiles

#: How long the last requests may take.
END_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class Habits:
    port: int
    key: str
    #: What its jobs contain.
    text: str
    connections: int = 4
    #: Of each connection, per second.
    requests_per_second: float = 15.0


class Timed(NamedTuple):
    """One request, by the monotonic clock; status 0: no answer."""

    at: float
    milliseconds: float
    status: int
    #: Of the job, if this was a submission.
    job_id: str = ""


def tail(timed: Iterable[Timed], begin: float, end: float) -> tuple[float, float]:
    """p50 and p99 in milliseconds of the requests that began in between."""
    p50, p99 = percentiles((one.milliseconds for one in timed if begin <= one.at < end), 0.50, 0.99)
    return p50, p99


@contextmanager
def living(habits: Habits) -> Iterator[list[Timed]]:
    """The victim at work, in a process of its own; its requests are there after the block."""
    timed: list[Timed] = []
    process = subprocess.Popen(
        [sys.executable, "-m", "loadtest.attack.victim"],
        cwd=PROJECT_ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdin is not None
        process.stdin.write(json.dumps(asdict(habits)) + "\n")
        process.stdin.flush()
        yield timed
        written, _ = process.communicate(timeout=END_SECONDS)
        timed += (Timed(*json.loads(line)) for line in written.splitlines())
    finally:
        if process.poll() is None:
            process.kill()
            process.wait()


def live(habits: Habits, number: int, stopping: threading.Event, timed: list[Timed]) -> None:
    """The requests of one connection, one after the other."""
    headers, period = {"Authorization": f"Bearer {habits.key}"}, 1 / habits.requests_per_second
    job = ""
    due = time.monotonic() + period * number / habits.connections
    with Api(habits.port) as api:
        for step in range(sys.maxsize):
            if stopping.wait(max(0.0, due - time.monotonic())):
                return
            began = time.monotonic()
            answer = api.call(*request(habits, step, job), headers)
            took = 1000 * (time.monotonic() - began)
            submitted = answer.document["id"] if answer.status == 202 else ""
            timed.append(Timed(began, took, answer.status, submitted))
            job = submitted or job
            due = max(due + period, time.monotonic() - period)


def request(habits: Habits, step: int, job: str) -> tuple[str, str, Any]:
    """The method, path and document of the next request."""
    if step % 4 == 0 or not job:
        payload = {"text": habits.text, "number": step}
        return "POST", "/jobs", {"type": "echo", "payload": payload}
    return "GET", f"/jobs/{job}" if step % 4 < 3 else "/jobs?limit=20", None


def main() -> None:
    """Read the habits from standard input, live until it is closed."""
    habits = Habits(**json.loads(sys.stdin.readline()))
    stopping, timed = threading.Event(), list[Timed]()
    given = [(habits, number, stopping, timed) for number in range(habits.connections)]
    threads = [threading.Thread(target=live, args=arguments) for arguments in given]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    stopping.set()
    for thread in threads:
        thread.join()
    sys.stdout.writelines(f"{json.dumps(each)}\n" for each in timed)


if __name__ == "__main__":
    main()
