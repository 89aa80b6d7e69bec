"""Execution as a pipeline: claim → run → settle."""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from tasks.runtime.claim import Claim, JobRef
from tasks.runtime.context import JobContext
from tasks.runtime.outcome import Outcome, Released, Snoozed, Succeeded, outcome_of
from tasks.runtime.tracing import run_span
from tasks.runtime.worker import Worker

#: A type this worker does not know may be known to a newer one during a rollout.
UNKNOWN_TYPE_SECONDS = 30.0


def execute(message: tuple[JobRef, ...], worker: Worker, helpers: ThreadPoolExecutor) -> None:
    """Run the jobs of a message; returns when all have ended, their results on the way."""
    claims = worker.claim(message)
    if not claims:
        return  # lost, cancelled, expired or already done: nothing to run
    if len(claims) == 1:
        execute_claim(claims[0], worker)
    else:
        Batch(claims, worker, helpers).run()


def execute_claim(claim: Claim, worker: Worker) -> None:
    """Run one claimed job in a slot of its own."""
    with worker.free_slots:
        if worker.draining:
            worker.settle(claim, Released(), 0.0)
            return
        if worker.abandon(claim):
            return  # lost while it waited for a slot: somebody else runs it
        lost = worker.begin(claim)
        started = time.monotonic()
        try:
            outcome = run(claim, worker, lost)
        finally:
            worker.end(claim)
        run_seconds = time.monotonic() - started
    worker.settle(claim, outcome, run_seconds)


def run(claim: Claim, worker: Worker, lost: threading.Event) -> Outcome:
    """Call the job function; whatever it does becomes an outcome."""
    job_type = worker.types.get(claim.type)
    if job_type is None:
        return Snoozed(UNKNOWN_TYPE_SECONDS)
    context = JobContext(
        claim.ref.id,
        claim.tenant_id,
        claim.attempt + 1,
        first_attempt=claim.attempt + claim.crashes + claim.deferrals == 0,
        _lost=lost,
    )
    try:
        with run_span(claim, worker.name):
            result: Any = job_type.run(context, claim.payload)
            return Succeeded(orjson.dumps(result).decode())
    except BaseException as error:  # noqa: BLE001 - whatever a job raises is an outcome, exits too
        return outcome_of(error)


class Batch:
    """Short jobs of one message: as parallel as they need, as cheap as they can be.

    Each runner, before it takes a job, wakes one more if jobs are left. Jobs that end in
    a moment are all done before the second runner wakes; jobs that wait fan out over the
    slots.
    """

    def __init__(
        self, claims: tuple[Claim, ...], worker: Worker, helpers: ThreadPoolExecutor
    ) -> None:
        self._left = deque(claims)
        self._unfinished = len(claims)
        self._counting = threading.Lock()
        self._finished = threading.Event()
        self._worker = worker
        self._helpers = helpers

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
                execute_claim(claim, self._worker)
            finally:
                with self._counting:
                    self._unfinished -= 1
                    if not self._unfinished:
                        self._finished.set()
