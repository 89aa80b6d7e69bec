"""Admission in groups: rows to be inserted, and express references to be published.

The reply waits for the rows only. After a failed publish they are released to their queue, or
found by the reaper. After one whose confirm is late they stay dispatched: it is probably there.

While the express lane is open, a job that comes alone is given to a worker that offers to run it
(`models.jobs.offer`). Where none does, the messages of a small group are sent as soon as its
statement is: they travel while it is committed, and the worker that is a moment too early looks
again. A message whose row is not there, or is queued after all, does nothing.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from sqlalchemy import Engine

from app.broker.messages import handed_over
from app.broker.publish import Publisher
from app.errors import BrokerUnavailable, IdempotencyKeyReused, NotFound, TenantMoved
from app.policy.early_messages import EarlyMessages
from app.repeated import BackgroundLoop
from app.telemetry.hooks import admit_traced
from models.jobs.admit import Outcome, admit_group
from models.jobs.admit_alone import admit_alone
from models.jobs.dispatch import Dispatch
from models.jobs.release import release
from models.jobs.submission import (
    Admitted,
    IdempotencyKey,
    KeyReused,
    Submission,
    SubmissionGroup,
    TenantAway,
)
from models.store.errors import StateStoreError
from models.store.group_commit import GroupCommit
from models.store.roles import is_of_another
from models.tallies import Count, Tallies, TallyKind
from models.wakeups import SEND, SEND_IN_FLIGHT, WakeupSender

logger = logging.getLogger(__name__)

#: After a failed or late publish the express lane rests this long; the scheduler carries on.
EXPRESS_REST_SECONDS = 5.0
#: A message that was sent so long before its row was there is sent again: the worker may have given
#: it up (``tasks.worker.slots.LATE_SECONDS``).
EARLY_SECONDS = 0.01
#: Requests of a group, and jobs of a request, whose messages may be sent early.
MOST_EARLY = 10
#: Submissions and dispatches are counted in memory and written this often.
COUNT_SECONDS = 2.0


class Admission:
    """Admits the submissions of one process."""

    def __init__(
        self,
        engine: Engine,
        publisher: Publisher,
        timeout_seconds: float,
        tallies: Tallies | None = None,
    ) -> None:
        """``tallies``: counts of this process to be written together with those of submissions."""
        self._engine = engine
        self._publisher = publisher
        self._timeout_seconds = timeout_seconds
        self._express_from = 0.0
        self._early = EarlyMessages()
        self._rows: GroupCommit[SubmissionGroup, Outcome] = GroupCommit(
            self._admit, name="admit", gathers=True
        )
        #: Counts of this process that the table does not have yet.
        self.tallies = tallies or Tallies()
        self.counting = BackgroundLoop(
            self._write_counts, COUNT_SECONDS, "counts", away="counts stay in memory"
        )
        self._express: GroupCommit[Dispatch, None] = GroupCommit(self._publish, name="express")
        self._wakeups = WakeupSender(engine)

    def admit(
        self, submissions: Sequence[Submission], key: IdempotencyKey | None = None
    ) -> Admitted:
        """Make the submissions durable, together; StateStoreUnavailable if that takes too long."""
        if any(is_of_another(item.tenant_id) for item in submissions):
            raise NotFound
        return admit_traced(
            submissions, lambda items: self._enter(SubmissionGroup(tuple(items), key))
        )

    def _enter(self, entry: SubmissionGroup) -> Admitted:
        admitted = self._rows.submit(entry, self._timeout_seconds, entry.weight)
        if isinstance(admitted, KeyReused):
            raise IdempotencyKeyReused
        if isinstance(admitted, TenantAway):
            raise TenantMoved
        return admitted

    def close(self, timeout: float) -> None:
        """Write and publish what still waits, before the process ends."""
        self._rows.close(timeout)
        self._express.close(timeout)
        self._wakeups.close(timeout)
        self.counting.close()
        try:
            self._write_counts()
        except StateStoreError as error:
            logger.warning("counts could not be written and are lost: %s", error)

    def _write_counts(self) -> None:
        self.tallies.write(self._engine)

    def _admit(self, group: Sequence[SubmissionGroup]) -> list[Outcome]:
        began = time.monotonic()
        express = began >= self._express_from
        alone = lone_job(group)
        give = alone is not None and self._early.offered(alone.pool)
        early = self._early_messages(group) if express and not give else []
        for dispatch in early:
            self._express.post(dispatch)
        try:
            if alone is None:
                admitted = admit_group(self._engine, group, express)
            else:
                admitted = [self._admit_alone(group[0], express, give)]
        except BaseException:
            self._early.forget()
            raise
        sent = {dispatch.id for dispatch in early}
        slow = time.monotonic() - began > EARLY_SECONDS
        if slow or self._express_from > began:
            sent = set()  # too early, or in vain
        counts: list[Count] = []
        queued = False
        for entry, outcome in zip(group, admitted, strict=True):
            if not isinstance(outcome, Admitted) or outcome.repeated:
                continue
            # Posted before the callers continue: the message travels while the replies do.
            for item in () if outcome.given else outcome.express:
                if item.id not in sent:
                    self._express.post(express_dispatch(item))
            queued = queued or len(outcome.express) < len(entry.submissions)
            tenant = str(entry.submissions[0].tenant_id)
            counts.append(((TallyKind.SUBMISSION, tenant), (len(entry.submissions), 0)))
            if entry.key is not None:
                counts.append(((TallyKind.IDEMPOTENCY_KEY, tenant), (1, 1)))
            counts += handed_over(outcome.express)
        if slow or len(group) > MOST_EARLY:  # after a slow one, every job would have two messages
            self._early.forget()
        else:
            self._note_lanes(group, admitted)
        # Of the express lane too: its credit is spent after a while.
        self._wakeups.send(SEND if queued else SEND_IN_FLIGHT)
        self.tallies.add_all(counts)
        self.counting.start()
        return admitted

    def _admit_alone(self, entry: SubmissionGroup, express: bool, give: bool) -> Outcome:
        admitted = admit_alone(self._engine, entry, express, give)
        if isinstance(admitted, Admitted) and not admitted.repeated:
            pool = entry.submissions[0].pool
            self._early.note_offer(pool, given=admitted.given, offered=admitted.offered)
        return admitted

    def _early_messages(self, group: Sequence[SubmissionGroup]) -> list[Dispatch]:
        """Of jobs that the express lane will probably take. A key may turn out to be known."""
        return [
            express_dispatch(item)
            for entry in group
            if entry.key is None and len(group) <= MOST_EARLY
            for item in entry.submissions[:MOST_EARLY]
            if item.express and item.execute_at is None and self._early.allowed(item.pool)
        ]

    def _note_lanes(self, group: Sequence[SubmissionGroup], admitted: Sequence[Outcome]) -> None:
        """Whether the express lanes of these jobs' pools are open."""
        express = {
            item.id for each in admitted if isinstance(each, Admitted) for item in each.express
        }
        by_pool: dict[str, list[str]] = {}
        for entry in group:
            for item in entry.submissions:
                by_pool.setdefault(item.pool, []).append(item.id)
        for pool, ids in by_pool.items():
            self._early.note(pool, all_express=express.issuperset(ids))

    def _publish(self, group: Sequence[Dispatch]) -> list[None]:
        undelivered: list[Dispatch] = []
        try:
            confirmed = self._publisher.publish(group)
        except BrokerUnavailable as error:
            confirmed = False
            logger.warning("%s The scheduler will dispatch instead.", error)
            undelivered.extend(group)
        undelivered += self._publisher.undelivered()
        if undelivered or not confirmed:
            self._express_from = time.monotonic() + EXPRESS_REST_SECONDS
        if undelivered:
            self._release(undelivered)
        return [None] * len(group)

    def _release(self, dispatches: Sequence[Dispatch]) -> None:
        try:
            release(self._engine, dispatches)
        except StateStoreError:
            logger.warning("could not release %d jobs; the reaper will", len(dispatches))


def lone_job(group: Sequence[SubmissionGroup]) -> Submission | None:
    """The job of a group that has no other; one with a time limit is claimed instead."""
    if len(group) > 1 or len(group[0].submissions) > 1:
        return None
    item = group[0].submissions[0]
    return item if item.not_after is None and item.execute_at is None else None


def express_dispatch(item: Submission) -> Dispatch:
    """The first lease of a job that is born dispatched."""
    return Dispatch(item.id, 1, item.type, item.pool, traceparent=item.traceparent)
