"""How a message becomes finished jobs: message → claim → run → decide → settle.

Read from top to bottom; :mod:`tasks.worker` has the parts.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import orjson

from models.jobs.claim import Claim, JobRef
from models.jobs.settle import Ending
from models.jobs.states import FailureClass
from models.store.errors import StateStoreUnavailable
from models.tallies import TallyKind
from tasks.process import exit_requested
from tasks.registry import JobType
from tasks.retry.decision import GOOD_STANDING
from tasks.worker.decide import close_run, standing_of
from tasks.worker.given_runs import GivenRun
from tasks.worker.held import Held, current_claim
from tasks.worker.limits import stoppable
from tasks.worker.outcome import (
    Failed,
    HandedBack,
    Outcome,
    Released,
    Snoozed,
    Succeeded,
    Withdrawn,
    outcome_of,
    outcome_of_result,
)
from tasks.worker.run_context import RunContext
from tasks.worker.run_log import traceback_of
from tasks.worker.tracing import message_span, run_span
from tasks.worker.worker import Worker

log = logging.getLogger("fairline.job")

#: A type this worker does not know may be known to a newer one during a rollout.
UNKNOWN_TYPE_SECONDS = 30.0
#: Pause before a row is tried again that somebody has locked.
LOCKED_SECONDS = 0.1


def execute(
    message: tuple[JobRef, ...], worker: Worker, helpers: ThreadPoolExecutor
) -> dict[str, Ending]:
    """Message → claim; of a given job, wait for its run. Returns when all its jobs have ended;
    results may still be unwritten.

    How the runs of this worker ended, by job: nothing of those that were lost, already
    done, or could not be settled.
    """
    slots = worker.slots
    if (given := slots.given.take(message[0])) is not None:  # alone in its message
        try:
            ending = given.ending.result()
        except BaseException:  # Celery ends its tasks at a second signal
            given.stop()
            raise
        return {} if ending is None else {message[0].id: ending}
    endings: dict[str, Ending] = {}
    claims = slots.claim(message)
    missing = slots.missing(message, claims)
    # Others of the message do not wait for one that is perhaps cancelled, if another thread may.
    apart = bool(missing and claims) and slots.count > 1
    if missing and not apart:
        claims += slots.claim_late(missing)
    if not claims:
        return endings  # lost, cancelled, expired or already done: nothing to run
    parent_span = message_span()

    def each(claim: Claim) -> None:
        ending = execute_claim(claim, worker, parent_span)
        if ending is not None:
            endings[claim.ref.id] = ending

    def run_all(claims: tuple[Claim, ...]) -> None:
        if slots.count > 1 and len(claims) > 1:
            run_batch(claims, each, helpers)
            return
        for claim in claims:  # in this very thread: a prefork run is stopped on the main one only
            each(claim)

    if apart:
        late = helpers.submit(lambda: run_all(slots.claim_late(missing)))
        run_all(claims)
        late.result()
    else:
        run_all(claims)
    return endings


def run_given(run: GivenRun, worker: Worker) -> None:
    """Run a job that was given to this worker, before its task begins: `execute` waits for it."""
    began = time.monotonic()
    try:
        ending = execute_claim(run.claim, worker)
    except BaseException as error:  # noqa: BLE001 - the task's, as if it had run the job itself
        run.ending.set_exception(error)
    else:
        run.seconds = time.monotonic() - began
        run.ending.set_result(ending)


def run_batch(
    claims: tuple[Claim, ...], execute: Callable[[Claim], None], helpers: ThreadPoolExecutor
) -> None:
    """Run the jobs of one message concurrently; returns when the last has ended.

    Each runner, before it takes a job, wakes one more if jobs are left. Jobs that end in a moment
    are all done before the second runner wakes; jobs that wait spread over the slots.
    """
    left, unfinished = deque(claims), len(claims)
    counting, finished = threading.Lock(), threading.Event()

    def take_all() -> None:
        nonlocal unfinished
        helped = False
        while True:
            try:
                claim = left.popleft()
            except IndexError:
                return
            if left and not helped:
                helped = True
                helpers.submit(take_all)
            try:
                execute(claim)
            finally:
                with counting:
                    unfinished -= 1
                    if not unfinished:
                        finished.set()

    take_all()
    finished.wait()


def execute_claim(claim: Claim, worker: Worker, parent_span: object = None) -> Ending | None:
    """Claim → run → decide → settle; ``parent_span`` is that of the job's message.

    The ending; None if the claim was lost, or if that failed: then its lease expires.
    """
    bound = current_claim.set(claim)  # for log lines
    try:
        ended = run_in_slot(claim, worker, parent_span)
        if ended is None:
            return None
        outcome, run_seconds = ended
        outcome, ending = decide(claim, outcome, worker)
        worker.ledger.settle(claim, outcome, ending, run_seconds)
        return ending
    except StateStoreUnavailable:
        raise  # the worker stops, and hands back what it holds
    except Exception:
        log.exception("job %s cannot be settled; its lease expires", claim.ref.id)
        worker.slots.forget(claim.ref)
        return None
    finally:
        current_claim.reset(bound)


def run_in_slot(claim: Claim, worker: Worker, parent_span: object) -> tuple[Outcome, float] | None:
    """Wait for a slot and run; the outcome and the run's seconds. None if the claim was lost."""
    slots = worker.slots
    with slots.turn(claim), slots.free:
        if slots.draining or held_back(claim, worker):
            return (Released(), 0.0) if slots.take(claim) else None
        if (deferral := worker.ledger.projections.deferral_of(claim.type)) is not None:
            # Its result could not be stored.
            return (deferral, 0.0) if slots.take(claim) else None
        held = slots.begin(claim)
        if held is None:
            return None  # lost or handed back while it waited for a slot: another worker's by now
        try:
            if held.cancelled is not None:
                return Withdrawn(), 0.0  # while it waited for a slot
            if not start_is_recorded(held, worker):
                return Released(), 0.0
            with run_span(claim, worker.name, parent_span) as note_outcome:
                outcome = run(claim, worker, held)
                note_outcome(outcome)
        finally:
            slots.end(held)
        return outcome, held.ran(time.monotonic())


def start_is_recorded(held: Held, worker: Worker) -> bool:
    """Whether the row knows that the run begins, if it has to; waits until it does.

    See :mod:`tasks.retry.lost`.
    """
    if held.started is None:
        try:
            while held.start_unrecorded and not held.lost:
                worker.ledger.post_beat().result()
                if held.start_unrecorded:
                    time.sleep(LOCKED_SECONDS)
        except StateStoreUnavailable:
            return False  # the worker stops
        except Exception:
            log.exception("the heartbeat failed, %s is released", held.claim.ref.id)
            return False
        held.start_time()
    return not held.lost


def held_back(claim: Claim, worker: Worker) -> bool:
    """Whether its dependency failed or rejected calls after the job was dispatched."""
    # By the row, as the dispatcher does: were they to differ, the job would go to and fro.
    name = claim.dependency
    rules = worker.heartbeat.rules
    return name in rules.open_circuits or worker.quotas.is_closed(name, time.monotonic())


def run(claim: Claim, worker: Worker, held: Held) -> Outcome:
    """Call the job function; whatever it does becomes an outcome. Never raises."""
    job_type = worker.types.get(claim.type)
    if job_type is None:
        return Snoozed(UNKNOWN_TYPE_SECONDS)
    # What is called from here on belongs to this run: see the watchdog's LoopMonitor.
    held.frame = sys._getframe()
    try:
        result = call(job_type, worker, held)
        if held.cancel_seen:
            return Withdrawn()
        return outcome_of_result(orjson.dumps(result))
    except BaseException as error:  # noqa: BLE001 - whatever a job raises is an outcome, exits too
        if exit_requested():
            return HandedBack()
        outcome = outcome_of(error)
        keep_traceback(held, outcome, error)
        # It was stopping: what went wrong then says nothing about its type or its dependency.
        return Withdrawn() if held.cancel_seen and isinstance(outcome, Failed) else outcome
    finally:
        held.frame = None


def call(job_type: JobType, worker: Worker, held: Held) -> Any:
    """The job function's own result or error, under its limits."""
    context = RunContext(worker, held)
    try:
        with stoppable(held, job_type.memory_mb):
            worker.prepared.ensure(job_type)
            return job_type.call(context, context.payload())
    finally:
        # The watchdog raises a Stop at any bytecode, also on entry to the limits' own exit.
        if held.disarm is not None:
            held.disarm()


def keep_traceback(held: Held, outcome: Outcome, error: BaseException) -> None:
    """Where it failed, for the job's author. A spent quota is no failure of the job."""
    if not isinstance(outcome, Failed) or outcome.refused:
        return
    held.traceback = traceback_of(error)
    if outcome.failure_class is FailureClass.APP_ERROR:
        claim = held.claim
        log.warning("%s, job %s failed\n%s", claim.type, claim.ref.id, held.traceback)


def decide(claim: Claim, outcome: Outcome, worker: Worker) -> tuple[Outcome, Ending]:
    """The outcome, or what it has to count as, and what it means for the row."""
    standing = GOOD_STANDING
    if not isinstance(outcome, Succeeded):
        unwritten = worker.tallies.unwritten(TallyKind.RETRY, str(claim.tenant_id))
        standing = standing_of(claim, worker.heartbeat.rules, unwritten)
    return close_run(claim, outcome, worker.types.get(claim.type), standing, worker.chance)
