"""A race: sides that start together on jobs of their own, each on its own connection."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import cached_property
from typing import Any, TypeVar

from sqlalchemy import Row

from models.jobs.admit import admit_group
from models.jobs.cancel import Cancellation, cancel
from models.jobs.claim import JobRef, claim_group
from models.jobs.dispatch import Dispatch
from models.jobs.ids import new_id
from models.jobs.settle import Ending, Settlement, settle_group, settle_statement
from models.jobs.submission import Submission, SubmissionGroup
from tasks.registry import projections_of
from tests.support.database_fixture import DatabaseFixture

Item = TypeVar("Item")

ROUNDS = 300
#: Jobs of a round, so that each side can win some.
JOBS = 3


class Race:
    """Threads that start together, and the jobs of all rounds."""

    def __init__(self, database: DatabaseFixture) -> None:
        self.database = database
        self.engine = database.engine
        self._threads = ThreadPoolExecutor(8)
        self._rounds = 0
        database.execute("UPDATE leaders SET expires_at = now() + interval '1 hour'")

    def run(self, *sides: Callable[[], Any]) -> list[Any]:
        """What each side was told. They take turns in coming last, for the last goes first."""
        start = threading.Barrier(len(sides))
        self._rounds += 1
        told: dict[int, Future[Any]] = {}

        def runner(side: Callable[[], Any]) -> Any:
            start.wait()
            return side()

        for number in range(len(sides)):
            place = (self._rounds + number) % len(sides)
            told[place] = self._threads.submit(runner, sides[place])
        return [told[place].result() for place in range(len(sides))]

    def begin(self, side: Callable[[], Item]) -> Future[Item]:
        """Start one side, to be held up in the middle."""
        return self._threads.submit(side)

    def close(self) -> None:
        self._threads.shutdown()

    def submit(self, **fields: Any) -> list[list[str]]:
        """Admit the jobs of all rounds."""
        ids = [new_id() for _ in range(ROUNDS * JOBS)]
        items = [Submission(job_id, 1, "sleep", "medium", "{}", **fields) for job_id in ids]
        admit_group(self.engine, [SubmissionGroup((item,)) for item in items], False)
        return in_rounds(ids)

    def dispatch(self) -> list[list[JobRef]]:
        """Admit and mark."""
        self.submit()
        return in_rounds(refs(self.database.dispatch(room=ROUNDS * JOBS)))

    def start(self) -> list[list[JobRef]]:
        """Admit, mark and claim."""
        rounds = self.dispatch()
        self.claim([ref for each in rounds for ref in each], "w1")
        return rounds

    def claim(self, messages: Sequence[JobRef], worker: str) -> set[JobRef]:
        found = claim_group(self.engine, worker, [(ref,) for ref in messages])
        return {claim.ref for claims in found for claim in claims}

    def cancel(self, ids: Sequence[str]) -> list[Cancellation | None]:
        return [cancel(self.engine, 1, job_id) for job_id in ids]

    def settle(self, settled: Sequence[JobRef], ending: Ending) -> list[bool]:
        group = [Settlement(ref, ending, 1) for ref in settled]
        return settle_group(self.engine, self.settling, "w1", group)

    @cached_property
    def settling(self) -> str:
        return settle_statement(projections_of(self.database.types.values()))

    def lose(self, lost: Sequence[JobRef]) -> None:
        """As if their workers had been silent."""
        self.database.execute(
            "UPDATE jobs SET lease_expires_at = now() - interval '1 second'"
            " WHERE id = ANY (%s::uuid[])",
            [ref.id for ref in lost],
        )

    def rows(self) -> dict[str, Row[Any]]:
        return {str(row.id): row for row in self.database.query("SELECT * FROM jobs")}


def in_rounds(items: Sequence[Item]) -> list[list[Item]]:
    assert len(items) == ROUNDS * JOBS
    return [list(items[at : at + JOBS]) for at in range(0, len(items), JOBS)]


def refs(dispatches: Sequence[Dispatch]) -> list[JobRef]:
    return [JobRef(dispatch.id, dispatch.lease) for dispatch in dispatches]


def assert_contested(winners: Counter[Item], *sides: Item) -> None:
    """A race that one side always wins proves nothing."""
    assert winners.keys() == set(sides), winners
