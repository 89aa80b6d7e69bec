"""A stack of its own for the experiments of fair share, with tenants and their jobs."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Engine

from app.admission.admit import admit_group
from app.admission.submission import Entry, Submission
from loadtest.fairline import Fairline
from loadtest.fleet import fleet
from models.ids import new_id

GROUP = 500
#: Longest wait for an idle stack.
IDLE_SECONDS = 60.0

RUNS = """
    SELECT tenant_id, extract(epoch FROM started_at)::float8,
           extract(epoch FROM coalesce(finished_at, clock_timestamp()))::float8
    FROM jobs WHERE started_at IS NOT NULL AND status IN ('running', 'succeeded')
      AND tenant_id = ANY (%(tenants)s::bigint[])
"""
WAITS = """
    SELECT extract(epoch FROM created_at)::float8,
           extract(epoch FROM started_at - created_at)::float8
    FROM jobs WHERE tenant_id = ANY (%(tenants)s::bigint[]) AND started_at IS NOT NULL
"""
UNSTARTED = """
    SELECT count(*) FROM jobs
    WHERE tenant_id = ANY (%(tenants)s::bigint[]) AND started_at IS NULL
"""


@dataclass(frozen=True, slots=True)
class Run:
    """A job that had a slot."""

    tenant_id: int
    started_at: float
    ended_at: float

    def seconds_in(self, begin: float, end: float) -> float:
        """How much of it lies between two moments."""
        return max(0.0, min(self.ended_at, end) - max(self.started_at, begin))


@dataclass(frozen=True, slots=True)
class Wait:
    """A job that has started."""

    created_at: float
    #: From its commit to its start.
    seconds: float


class House:
    """One running Fairline and its tenants."""

    def __init__(self, fairline: Fairline, engine: Engine) -> None:
        self.fairline = fairline
        self.engine = engine

    def tenant(self, name: str, tier: str = "standard", weight: float | None = None) -> int:
        """A tenant; its id."""
        with self.engine.connect() as taken:
            return int(
                taken.exec_driver_sql(
                    "INSERT INTO tenants (name, tier, weight) VALUES (%s, %s, %s)"
                    " ON CONFLICT (name) DO UPDATE SET tier = excluded.tier,"
                    " weight = excluded.weight, changed_at = now() RETURNING id",
                    (name, tier, weight),
                ).scalar_one()
            )

    def submit(
        self,
        tenant_id: int,
        payloads: Iterable[Mapping[str, Any]],
        type_name: str = "sleep",
        pool: str = "medium",
        tier: str = "standard",
    ) -> None:
        """Jobs in the line, with the front door's own statement."""
        items = [
            Submission(
                new_id(), tenant_id, type_name, pool, json.dumps(payload), express=tier != "free"
            )
            for payload in payloads
        ]
        for begin in range(0, len(items), GROUP):
            admit_group(self.engine, [Entry(tuple(items[begin : begin + GROUP]))], express=False)

    def runs(self, tenants: Sequence[int]) -> list[Run]:
        """Every run of these tenants so far."""
        return [Run(*row) for row in self._read(RUNS, tenants)]

    def waits(self, tenants: Sequence[int], since: float = 0.0) -> list[Wait]:
        """Waits of the jobs that were submitted since and have started."""
        waits = [Wait(*row) for row in self._read(WAITS, tenants)]
        return [wait for wait in waits if wait.created_at >= since]

    def waiting(self, tenant_id: int) -> int:
        """Jobs of a tenant that have not started."""
        return int(self._read(UNSTARTED, [tenant_id])[0][0])

    def await_started(self, tenants: Sequence[int]) -> None:
        """Wait until every job of these tenants has started."""
        deadline = time.monotonic() + IDLE_SECONDS
        while self._read(UNSTARTED, tenants)[0][0]:
            if time.monotonic() > deadline:
                raise RuntimeError("jobs of the steady tenants do not start")
            time.sleep(0.2)

    def _read(self, sql: str, tenants: Sequence[int]) -> Sequence[Any]:
        with self.engine.connect() as taken:
            return taken.exec_driver_sql(sql, {"tenants": list(tenants)}).all()


@contextmanager
def house(name: str, pool: str, workers: int, **settings: str) -> Iterator[House]:
    """API, scheduler and workers of one pool, ready."""
    with fleet(name) as started:
        fairline = Fairline(started, served_pools=pool, **settings)
        fairline.start_api()
        fairline.start_scheduler()
        for number in range(1, workers + 1):
            fairline.start_worker(pool, number)
        fairline.await_ready()
        with fairline.engine() as engine:
            yield House(fairline, engine)
