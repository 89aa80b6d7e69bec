"""Admission in groups: rows to be inserted, and express references to be published.

The reply waits for the rows only. After a failed publish they are released to their queue, or
found by the reaper.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from sqlalchemy import Engine

from app.broker.publish import Publisher
from app.errors import BrokerUnavailable, IdempotencyKeyReused
from app.telemetry.hooks import admit_traced
from models.jobs.admit import Outcome, admit_group
from models.jobs.dispatch import Dispatch
from models.jobs.release import release
from models.jobs.submission import Admitted, IdempotencyKey, KeyReused, Submission, SubmissionGroup
from models.store.errors import StateStoreError
from models.store.group_commit import GroupCommit

logger = logging.getLogger(__name__)

#: After a failed publish the express lane rests this long; the scheduler carries on.
EXPRESS_REST_SECONDS = 5.0


class Admission:
    """Admits the submissions of one process."""

    def __init__(self, engine: Engine, publisher: Publisher, timeout_seconds: float) -> None:
        self._engine = engine
        self._publisher = publisher
        self._timeout_seconds = timeout_seconds
        self._express_from = 0.0
        self._rows: GroupCommit[SubmissionGroup, Outcome] = GroupCommit(
            self._admit, name="admit", gathers=True
        )
        self._express: GroupCommit[Dispatch, None] = GroupCommit(self._publish, name="express")

    def admit(
        self, submissions: Sequence[Submission], key: IdempotencyKey | None = None
    ) -> Admitted:
        """Make the submissions durable, together; StateStoreUnavailable if that takes too long."""
        return admit_traced(
            submissions, lambda items: self._enter(SubmissionGroup(tuple(items), key))
        )

    def _enter(self, entry: SubmissionGroup) -> Admitted:
        admitted = self._rows.submit(entry, self._timeout_seconds, entry.weight)
        if isinstance(admitted, KeyReused):
            raise IdempotencyKeyReused
        return admitted

    def close(self, timeout: float) -> None:
        """Write and publish what still waits, before the process ends."""
        self._rows.close(timeout)
        self._express.close(timeout)

    def _admit(self, group: Sequence[SubmissionGroup]) -> list[Outcome]:
        express = time.monotonic() >= self._express_from
        admitted = admit_group(self._engine, group, express)
        # Posted before the callers continue: the message travels while the replies do.
        for entry in admitted:
            for item in entry.express if isinstance(entry, Admitted) else ():
                self._express.post(Dispatch(item.id, 1, item.type, item.pool))
        return admitted

    def _publish(self, group: Sequence[Dispatch]) -> list[None]:
        try:
            self._publisher.publish(group)
        except BrokerUnavailable as error:
            self._express_from = time.monotonic() + EXPRESS_REST_SECONDS
            logger.warning("%s The scheduler will dispatch instead.", error)
            try:
                release(self._engine, group)
            except StateStoreError:
                logger.warning("could not release %d jobs; the reaper will", len(group))
        return [None] * len(group)
