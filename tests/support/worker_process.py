"""A scheduler and a worker as real processes, with job types that misbehave."""

from __future__ import annotations

import json
import subprocess
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from sqlalchemy import Row

from loadtest.fleet import QUEUE_TYPE
from models.jobs.states import TERMINAL
from tests.support.commands import SCHEDULER, command, worker
from tests.support.database_fixture import DatabaseFixture

#: Short leases, so that what is lost is found soon; patience where native code is killed.
POOLS: dict[str, dict[str, Any]] = {
    "short": {"lease_seconds": 8},
    "long": {"lease_seconds": 6, "checkpoint_seconds": 2},
    "native": {"lease_seconds": 60, "slots": 1, "tries": 2, "concurrency": "prefork"},
}


class WorkerProcess:
    """What a test does with the processes."""

    def __init__(
        self, database: DatabaseFixture, argv: tuple[str, ...], env: Mapping[str, str], log: Path
    ):
        self.database = database
        self._argv = argv
        self._env = env
        self.log = log
        self._closed = threading.Event()
        self._held = False
        self.worker: subprocess.Popen[bytes] | None = None
        self._keeper = threading.Thread(target=self._keep_worker)
        self._keeper.start()

    def submit(self, type_: str, pool: str, **payload: Any) -> str:
        """Put a job in line."""
        return self.database.submit(type=type_, pool=pool, payload=json.dumps(payload))

    def wait(self, what: Callable[[], Any], words: str, seconds: float = 60) -> Any:
        """Until ``what`` gives something true."""
        deadline = time.monotonic() + seconds
        while not (found := what()):
            if time.monotonic() > deadline:
                raise AssertionError(f"waited {seconds} s for {words}\n{self.log.read_text()}")
            time.sleep(0.05)
        return found

    def wait_running(self, job_id: str) -> Row[Any]:
        """Until the job runs; its row."""
        row: Row[Any] = self.wait(lambda: self._row(job_id, {"running"}), f"{job_id} to run")
        return row

    def wait_ended(self, job_id: str, seconds: float = 60) -> Row[Any]:
        """Until the job has ended; its row."""
        job = self.database.job(job_id)
        row: Row[Any] = self.wait(
            lambda: self._row(job_id, TERMINAL), f"{job.type} to end", seconds
        )
        return row

    def attempts(self, job_id: str) -> list[str]:
        """Failure classes of the runs that gave no result."""
        sql = "SELECT error_class FROM attempts WHERE job_id = %s ORDER BY lease"
        return [row[0] for row in self.database.query(sql, job_id)]

    def _row(self, job_id: str, statuses: Any) -> Row[Any] | None:
        row = self.database.job(job_id)
        return row if row.status in statuses else None

    def _keep_worker(self) -> None:
        """A worker that dies is replaced, as whoever runs the product does it."""
        while not self._closed.is_set() and not self._held:
            with command(self._argv, self._env, self.log) as self.worker:
                while self.worker.poll() is None and not self._closed.wait(0.05):
                    pass

    def hold(self) -> None:
        """From now on nobody replaces the worker."""
        self._held = True

    def close(self) -> None:
        self._closed.set()
        self._keeper.join()


@contextmanager
def worker_process(
    database: DatabaseFixture,
    broker_url: str,
    folder: Path,
    pools: str,
    slots: int,
    kind: str,
    changes: Mapping[str, Mapping[str, Any]] = POOLS,
    **settings: str,
) -> Iterator[WorkerProcess]:
    """A worker of ``pools`` beside a scheduler; ``changes`` are FAIRLINE_POOLS, ``settings`` more
    of the environment."""
    (folder / "blobs").mkdir()
    env = {
        "FAIRLINE_DATABASE_URL": database.engine.url.render_as_string(hide_password=False),
        "FAIRLINE_BROKER_URL": broker_url,
        "FAIRLINE_QUEUE_TYPE": QUEUE_TYPE,
        "FAIRLINE_BLOB_URL": str(folder / "blobs"),
        "FAIRLINE_JOB_MODULES": "tests.support.runaways",
        "FAIRLINE_POOLS": json.dumps(changes),
        "FAIRLINE_CANCEL_GRACE_SECONDS": "1",
        "PYTHONPATH": ".",
        **settings,
    }
    database.leader.resign()
    with command(SCHEDULER, env, folder / "scheduler.log"):
        started = WorkerProcess(database, worker(pools, slots, kind), env, folder / "worker.log")
        try:
            yield started
        finally:
            started.close()
