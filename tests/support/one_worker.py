"""A worker inside the test's own process, whose jobs do what the test says."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from models.blobs import open_blobs
from models.jobs.claim import JobRef
from tasks.context import JobContext
from tasks.retry.decision import RetryLimits
from tasks.worker.pipeline import execute
from tasks.worker.slots import Host
from tasks.worker.worker import Worker
from tests.support.database_fixture import DatabaseFixture


class OneWorker:
    """Runs jobs of the type ``echo``, which do what ``act`` does."""

    def __init__(
        self,
        database: DatabaseFixture,
        slots: int = 4,
        blobs: Path | None = None,
        host: Host | None = None,
        name: str = "w1",
    ) -> None:
        self.database = database
        self.act: Any = lambda ctx, payload: payload
        echo = replace(
            database.types["echo"], run=self._run, timeout_seconds=60.0, limits=RetryLimits(3)
        )
        types = {**database.types, "echo": echo}
        store = None if blobs is None else open_blobs(str(blobs))
        self.worker = Worker(
            database.engine, types, name=name, pools=["short"], slots=slots, blobs=store, host=host
        )
        self.helpers = ThreadPoolExecutor(slots)

    def _run(self, ctx: JobContext, payload: Any) -> Any:
        return self.act(ctx, payload)

    def refs(self, count: int, **fields: Any) -> tuple[JobRef, ...]:
        """Dispatched jobs of the pool."""
        for _ in range(count):
            self.database.submit(pool="short", **fields)
        return self.dispatched(count)

    def dispatched(self, count: int) -> tuple[JobRef, ...]:
        """Jobs of the pool's line."""
        return tuple(JobRef(d.id, d.lease) for d in self.database.dispatch("short", count))

    def execute(self, refs: tuple[JobRef, ...]) -> None:
        execute(refs, self.worker, self.helpers)

    def flush(self) -> None:
        """Until everything that was posted is written."""
        self.worker.ledger.post_beat().result(30)
        until = time.monotonic() + 30.0
        while any(one.taken and not one.running for one in self.worker.slots.held()):
            assert time.monotonic() < until, "endings with projections are not written"
            time.sleep(0.005)


@contextmanager
def one_worker(database: DatabaseFixture, **options: Any) -> Iterator[OneWorker]:
    """A worker for the length of a test."""
    made = OneWorker(database, **options)
    try:
        yield made
    finally:
        made.worker.stop()
        made.helpers.shutdown()
