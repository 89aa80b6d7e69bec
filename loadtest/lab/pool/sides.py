"""The two systems of the pool experiment: started, looked at and taken away again."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from sqlalchemy import Engine, text

from loadtest.fairline import Fairline
from loadtest.fleet import Fleet
from loadtest.lab.gauges import Speed, fairline_gauges
from loadtest.lab.sampling import Gauges
from loadtest.plain import PlainCelery
from loadtest.pool_watch import read_pools
from models.pools import POOLS

#: Jobs that hold a connection are running; the others wait, wherever that is.
PLAIN_COUNTS = text("""
    SELECT count(*), count(finished_at) FROM applications
""")
PLAIN_OLDEST = text("""
    SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
    FROM (SELECT created_at FROM applications WHERE finished_at IS NULL
          ORDER BY created_at OFFSET :running LIMIT 1) AS first
""")
PLAIN_ENDINGS = text("""
    SELECT id::text, extract(epoch FROM finished_at)::float8 FROM applications
    WHERE id = ANY (CAST(:ids AS uuid[])) AND finished_at IS NOT NULL
""")
FAIRLINE_ENDINGS = text("""
    SELECT id::text, extract(epoch FROM finished_at)::float8 FROM jobs
    WHERE id = ANY (CAST(:ids AS uuid[])) AND status = 'succeeded'
""")


@dataclass(frozen=True, slots=True)
class Shape:
    """What both systems have in common."""

    workers: int
    score_seconds: float


class Side(Protocol):
    """One system with one size of pool."""

    title: str
    url: str

    def start(self) -> None:
        """Start everything and wait until it would score what it is sent."""

    def gauges(self) -> Any:
        """What is looked at once a second, as a context manager."""

    def endings(self, ids: Sequence[str]) -> dict[str, float]:
        """When each of these was scored, if it was."""

    def pool_size(self) -> int:
        """Connections that the pool of a worker may open, as the workers say; the most."""

    def timeouts(self) -> int:
        """Jobs that gave up waiting for a connection."""

    def stop(self) -> None:
        """Stop everything and leave no rows behind."""


@contextmanager
def plain_celery(fleet: Fleet, shape: Shape) -> Iterator[PlainCelery]:
    """The baseline, whose front door both sizes of the workers' pool share; the first opens it."""
    plain = PlainCelery(
        fleet,
        name="plain-pool",
        hold_connection="1",
        score_seconds=str(shape.score_seconds),
        prefetch="1",
    )
    try:
        yield plain
    finally:
        fleet.kill("plain-web")
        plain.remove()


class PlainSide:
    """Workers of plain Celery whose task holds its connection while it scores."""

    def __init__(self, plain: PlainCelery, shape: Shape, pool_size: int) -> None:
        self.title = f"Plain Celery, {pool_size} connections a worker"
        self.url = plain.url
        self._shape = shape
        self._size = pool_size
        self._plain = plain
        self._said = plain.fleet.home / f"{plain.name}-{pool_size}"
        self._names: list[str] = []

    def start(self) -> None:
        self._said.mkdir(parents=True, exist_ok=True)
        for number in range(1, self._shape.workers + 1):
            self._names.append(
                self._plain.start_worker(
                    number, pool_size=str(self._size), pool_folder=str(self._said)
                )
            )
        # After the workers, which start meanwhile.
        if "plain-web" not in self._plain.fleet.children:
            self._plain.start_web()
        self._plain.await_workers(self._shape.workers)

    @contextmanager
    def gauges(self) -> Iterator[Gauges]:
        accepted, done = Speed(), Speed()
        engine = self._plain.engine()

        def read() -> Mapping[str, float]:
            pools = read_said(self._said)
            running = sum(pool["in_use"] for pool in pools)
            with engine.connect() as connection:
                submitted, ended = connection.execute(PLAIN_COUNTS).one()
                oldest = connection.execute(PLAIN_OLDEST, {"running": running}).scalar_one()
            return {
                "waiting": max(0, submitted - ended - running),
                "running": running,
                "oldest_s": round(oldest, 2),
                "accepted_s": accepted(submitted),
                "done_s": done(ended),
                "waiters": sum(pool["waiting"] for pool in pools),
            }

        try:
            yield read
        finally:
            engine.dispose()

    def endings(self, ids: Sequence[str]) -> dict[str, float]:
        engine = self._plain.engine()
        try:
            return read_endings(engine, PLAIN_ENDINGS, ids)
        finally:
            engine.dispose()

    def pool_size(self) -> int:
        return max(pool["size"] for pool in read_said(self._said))

    def timeouts(self) -> int:
        return sum(pool["timeouts"] for pool in read_said(self._said))

    def stop(self) -> None:
        # At once: Celery would take seconds to say goodbye to a broker that is to forget it.
        self._plain.fleet.kill(*self._names)
        self._plain.remove_queue()
        engine = self._plain.engine()
        with engine.begin() as connection:
            connection.execute(text("TRUNCATE applications"))
        engine.dispose()
        shutil.rmtree(self._said, ignore_errors=True)


class FairlineSide:
    """Fairline, which holds no connection while a job runs."""

    def __init__(self, fleet: Fleet, shape: Shape, pool_size: int) -> None:
        self.title = f"Fairline, {pool_size} connections a worker"
        self._shape = shape
        self._name = "pool"
        self._fairline = Fairline(
            fleet,
            served_pools="medium",
            name=self._name,
            score_seconds=str(shape.score_seconds),
            db_pool_size=str(pool_size),
        )
        self.url = self._fairline.url
        self._names: list[str] = []

    def start(self) -> None:
        for number in range(1, self._shape.workers + 1):
            self._names.append(self._fairline.start_worker("medium", number))
        self._fairline.start_scheduler()
        self._names.append("scheduler")
        self._fairline.start_api()
        self._names.append("api")
        self._fairline.await_ready()
        self._fairline.await_slots("medium", self._shape.workers * POOLS["medium"].slots)

    @contextmanager
    def gauges(self) -> Iterator[Gauges]:
        with fairline_gauges(self._fairline) as gauges:
            # Of all processes together, as with the other side.
            yield lambda: {
                **gauges(),
                "waiters": sum(read_pools(self.url).waiting.values()),
            }

    def endings(self, ids: Sequence[str]) -> dict[str, float]:
        with self._fairline.engine() as engine:
            return read_endings(engine, FAIRLINE_ENDINGS, ids)

    def pool_size(self) -> int:
        sizes = read_pools(self.url).size
        return max(size for process, size in sizes.items() if process.startswith("worker"))

    def timeouts(self) -> int:
        return 0  # a job has no connection to wait for

    def stop(self) -> None:
        self._fairline.fleet.kill(*self._names)
        self._fairline.fleet.postgres.service.drop_database(self._name)


def read_endings(engine: Engine, statement: Any, ids: Sequence[str]) -> dict[str, float]:
    """When each was scored, in seconds since the epoch."""
    with engine.connect() as connection:
        return {row[0]: row[1] for row in connection.execute(statement, {"ids": list(ids)})}


def read_said(folder: Path) -> list[dict[str, int]]:
    """What the baseline's processes say of their pools."""
    return [json.loads(file.read_text()) for file in sorted(folder.glob("*.json"))]
