"""Execution as a pipeline: claim → run → settle."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
import traceback
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from models.states import FailureClass
from tasks.runtime.claim import Claim, JobRef
from tasks.runtime.context import JobContext
from tasks.runtime.current import current_claim
from tasks.runtime.desk import RunDesk
from tasks.runtime.held import Held
from tasks.runtime.limits import stoppable
from tasks.runtime.outcome import (
    Failed,
    HandedBack,
    Outcome,
    Released,
    Snoozed,
    Withdrawn,
    outcome_of,
    outcome_of_result,
)
from tasks.runtime.process import told_to_exit
from tasks.runtime.tracing import message_span, run_span
from tasks.runtime.worker import Worker

log = logging.getLogger("fairline.job")

#: A type this worker does not know may be known to a newer one during a rollout.
UNKNOWN_TYPE_SECONDS = 30.0


def execute(message: tuple[JobRef, ...], worker: Worker, helpers: ThreadPoolExecutor) -> None:
    """Run the jobs of a message; returns when all have ended, their results on the way."""
    claims = worker.claim(message)
    if not claims:
        return  # lost, cancelled, expired or already done: nothing to run
    brought_by = message_span()
    if worker.slots > 1 and len(claims) > 1:
        Batch(claims, worker, helpers, brought_by).run()
        return
    for claim in claims:  # in this very thread: a prefork run is stopped on the main one only
        execute_claim(claim, worker, brought_by)


def execute_claim(claim: Claim, worker: Worker, brought_by: object = None) -> None:
    """Run one claimed job in a slot of its own; ``brought_by`` is its message's span."""
    bound = current_claim.set(claim)
    try:
        execute_bound(claim, worker, brought_by)
    finally:
        current_claim.reset(bound)


def execute_bound(claim: Claim, worker: Worker, brought_by: object) -> None:
    """Run a claim that log lines know of."""
    with worker.free_slots:
        if worker.abandon(claim):
            return  # lost while it waited for a slot: somebody else's by now
        if worker.draining or parked(claim, worker):
            worker.settle(claim, Released(), 0.0)
            return
        held = worker.begin(claim)
        if held.cancelled is not None:
            outcome: Outcome = Withdrawn()  # while it waited for a slot
        else:
            with run_span(claim, worker.name, brought_by) as span:
                outcome = run(claim, worker, held)
                span.note(outcome)
        worker.end(held)
        run_seconds = held.ran(time.monotonic())
    worker.settle(claim, outcome, run_seconds)


def parked(claim: Claim, worker: Worker) -> bool:
    """Whether its dependency failed or refused too much after the job was dispatched."""
    # By the row, as the dispatcher does: were they to differ, the job would go to and fro.
    name = claim.dependency
    return name in worker.rules.open_circuits or worker.quotas.is_closed(name, time.monotonic())


def run(claim: Claim, worker: Worker, held: Held) -> Outcome:
    """Call the job function; whatever it does becomes an outcome. Never raises.

    The watchdog looks for this function on the stack, and for ``held`` in it.
    """
    job_type = worker.types.get(claim.type)
    if job_type is None:
        return Snoozed(UNKNOWN_TYPE_SECONDS)
    desk = RunDesk(worker, held)
    context = JobContext(
        claim.ref.id,
        claim.tenant_id,
        claim.attempt + 1,
        first_attempt=claim.attempt + claim.crashes + claim.deferrals + claim.replays == 0,
        desk=desk,
    )
    try:
        with stoppable(held, job_type.memory_mb):
            worker.prepared.ensure(job_type)
            result: Any = job_type.run(context, desk.payload())
        if held.cancel_seen:
            return Withdrawn()
        return outcome_of_result(orjson.dumps(result))
    except BaseException as error:  # noqa: BLE001 - whatever a job raises is an outcome, exits too
        if told_to_exit():
            return HandedBack()
        outcome = outcome_of(error)
        tell_author(claim, outcome, error)
        return outcome


def tell_author(claim: Claim, outcome: Outcome, error: BaseException) -> None:
    """The row has the message of an APP_ERROR; who wrote the job wants to know the line."""
    if isinstance(outcome, Failed) and outcome.failure_class is FailureClass.APP_ERROR:
        with contextlib.suppress(Exception):  # an error may be odd enough to trip even this
            told = "".join(traceback.format_exception(error)).encode("utf-8", "replace").decode()
            log.warning("%s, job %s failed\n%s", claim.type, claim.ref.id, told.rstrip())


class Batch:
    """Short jobs of one message: as parallel as they need, as cheap as they can be.

    Each runner, before it takes a job, wakes one more if jobs are left. Jobs that end in
    a moment are all done before the second runner wakes; jobs that wait fan out over the
    slots.
    """

    def __init__(
        self,
        claims: tuple[Claim, ...],
        worker: Worker,
        helpers: ThreadPoolExecutor,
        brought_by: object,
    ) -> None:
        self._left = deque(claims)
        self._unfinished = len(claims)
        self._counting = threading.Lock()
        self._finished = threading.Event()
        self._worker = worker
        self._helpers = helpers
        self._brought_by = brought_by

    def run(self) -> None:
        self._take_all()
        self._finished.wait()

    def _take_all(self) -> None:
        helped = False
        while True:
            try:
                claim = self._left.popleft()
            except IndexError:
                return
            if self._left and not helped:
                helped = True
                self._helpers.submit(self._take_all)
            try:
                execute_claim(claim, self._worker, self._brought_by)
            finally:
                with self._counting:
                    self._unfinished -= 1
                    if not self._unfinished:
                        self._finished.set()
