"""The Celery side of a worker: one task per job type, and the handlers of Celery's signals.

Celery carries messages and shows them in Flower; what happens to a job is decided by the row. A
task that fails or waits for a retry does so for Flower alone: see :mod:`tasks.task_events`.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from mmap import mmap
from typing import Any

from billiard.exceptions import TimeLimitExceeded  # type: ignore[import-untyped]  # no types
from celery import Celery
from celery.exceptions import Reject, WorkerLostError
from celery.signals import (
    task_failure,
    task_received,
    task_unknown,
    worker_init,
    worker_process_init,
    worker_process_shutdown,
    worker_ready,
    worker_shutdown,
    worker_shutting_down,
)
from sqlalchemy import Engine, make_url

from models.blobs import open_blobs
from models.jobs.claim import JobRef
from models.jobs.ids import parse_id
from models.pools import POOLS, RETIRE, is_job_queue, parse_queue, unmeasured_refs
from models.presence import KEEP_PRESENT, process_name
from models.store.errors import StateStoreUnavailable
from models.store.roles import DatabaseRole
from models.store.session import open_engine
from tasks.config import TaskSettings, task_settings
from tasks.local_message import begin
from tasks.process import (
    end_with_parent,
    exit_requested,
    is_green,
    make_sleep_green,
    start_native,
)
from tasks.registry import JobType, load_types
from tasks.task_events import JobFailed, report
from tasks.watchdog.children import ChildPresence
from tasks.watchdog.emergency_write import connect_arguments
from tasks.watchdog.lost_runs import (
    defer_unknown,
    expire_lost,
    hard_limit_seconds,
    settle_overdue,
)
from tasks.watchdog.presence_keeper import PresenceKeeper
from tasks.watchdog.watchdog import Watchdog
from tasks.worker.offers import MOST_OFFERED, Offers
from tasks.worker.pipeline import execute
from tasks.worker.prepare import PreparedTypes
from tasks.worker.slots import Host
from tasks.worker.worker import Worker

logger = logging.getLogger(__name__)

#: How long a prefork child tries to be known before it takes messages.
ANNOUNCE_SECONDS = 5.0


class WorkerProcess:
    """The worker runtime of this process, once Celery has started it."""

    engine: Engine | None = None
    worker: Worker | None = None
    watchdog: Watchdog | None = None
    offers: Offers | None = None
    helpers: ThreadPoolExecutor | None = None
    #: Queues that it serves, of pools or of slices.
    queues: Sequence[str] = tuple(POOLS)
    #: A byte that a prefork parent shares with its children: not 0 while it stops.
    stopping: mmap | None = None
    #: Another one, in every worker: not 0 once it is asked to retire.
    retiring: mmap | None = None
    #: What a prefork parent shares with its children about their reports.
    children: ChildPresence | None = None
    #: The worker's main process, which gets Celery's signals: a prefork parent, or this one.
    main_pid: int = 0
    #: Celery's part of that process.
    controller: Any = None
    #: Name of that parent; and Celery's name of the worker.
    parent: str | None = None
    node: str = "worker"


this = WorkerProcess()


def is_set(flag: mmap | None) -> bool:
    """Whether a shared byte is set; false where there is none."""
    return flag is not None and flag[0] != 0


def types_of(settings: TaskSettings) -> dict[str, JobType]:
    """The job types that exist by these settings."""
    return load_types(settings.job_modules, demo=settings.demo_types)


def register_tasks(celery: Celery, settings: TaskSettings) -> dict[str, JobType]:
    """Register a Celery task for every job type, under its name."""
    types = types_of(settings)
    for name in types:
        celery.task(_run_message, name=name, bind=True, ignore_result=True, throws=(JobFailed,))
    return types


def _run_message(task: Any, refs: list[list[Any]]) -> None:
    """Body of every task: ``refs`` is a list of [job id, lease number]."""
    if this.worker is None or this.helpers is None:
        raise RuntimeError("this process is not a worker")
    message = parse_refs(refs)
    if not message:
        return
    try:
        given = this.worker.slots.given.find(message[0])
        endings = execute(message, this.worker, this.helpers)
    except StateStoreUnavailable as error:
        # Only while the worker stops: nothing was claimed, another worker may.
        raise Reject(str(error), requeue=True) from error
    if exit_requested():
        raise SystemExit  # the run had to swallow it, to be handed back
    report(task, endings, event_dispatcher(), given.seconds if given else None)


@task_received.connect
def _claim_at_once(request: Any = None, **_: Any) -> None:
    """A green worker claims before Celery has told of the message and started its task."""
    if this.worker is not None and request.args:
        this.worker.slots.claim_soon(parse_refs(request.args[0]))


def event_dispatcher() -> Any:
    """Sends events to Flower; None in a prefork child, whose parent sends them."""
    if os.getpid() != this.main_pid:
        return None
    return getattr(getattr(this.controller, "consumer", None), "event_dispatcher", None)


def parse_refs(refs: Any) -> tuple[JobRef, ...]:
    """The references of a message; anything else is dropped, as the row decides anyway."""
    message = []
    for ref in refs if isinstance(refs, list) else ():
        match ref:
            case [str(text), int(lease)] if 0 <= lease < 2**31 and (job_id := parse_id(text)):
                message.append(JobRef(job_id, lease))
            case _:
                logger.warning("dropped an invalid job reference: %.100r", ref)
    return tuple(message)


@worker_init.connect
def _begin_worker(sender: Any, **_: Any) -> None:
    """Green pools run in this very process; ``worker_process_init`` never fires for them."""
    this.queues = tuple(filter(is_job_queue, sender.app.amqp.queues.consume_from))
    # Else every greenlet would open a result backend, only to find that there is none.
    for name in types_of(task_settings()):
        sender.app.tasks[name].backend = sender.app.backend
    this.retiring = mmap(-1, 1)
    this.main_pid, this.node, this.controller = os.getpid(), sender.hostname, sender
    signal.signal(RETIRE, _retire)
    if "prefork" in str(sender.pool_cls):
        _prepare_parent(sender.app, sender.concurrency)
        return
    make_sleep_green()
    slots = sender.concurrency
    # Celery's concurrency becomes the number of messages at hand, a few more than slots, so that
    # no slot waits for a claim; slots stay what -c said.
    sender.concurrency = slots + max(1, slots // 5)
    try:
        _begin(slots)
    except Exception as error:
        # Celery only logs what a signal's handler raises, and would go on to take messages.
        logger.exception("the worker cannot start")
        raise SystemExit(f"the worker cannot start: {error}") from error


def _prepare_parent(celery: Celery, concurrency: int) -> None:
    """Before the children are forked: limits that the parent enforces, and what they share.

    A child's message is acknowledged when its run begins. Held until the end, RabbitMQ would
    close the consumer after 30 minutes, and raising that limit is up to the broker's operator.
    Nothing depends on the message any more: the reaper finds a run that was lost.
    """
    this.stopping = mmap(-1, 1)
    this.parent = process_name(this.node)
    this.children = ChildPresence(concurrency, task_settings().database_url)
    this.children.start()
    for job_type in types_of(task_settings()).values():
        task = celery.tasks[job_type.name]
        task.acks_late = False
        task.time_limit = hard_limit_seconds(
            # More of them share a message only if all of them together take a moment.
            job_type,
            unmeasured_refs(POOLS[job_type.pool]),
        )


@task_failure.connect
def _settle_killed(exception: Any = None, args: Any = (), **_: Any) -> None:
    """In the parent: a child was killed at its time limit, or died of something else.

    Called twice for a time limit; the row accepts the first."""
    if not args or this.parent is None:
        return
    settings = task_settings()
    if isinstance(exception, TimeLimitExceeded):
        types = types_of(settings)
        settle_overdue(settings.database_url, types, this.parent, parse_refs(args[0]))
    elif isinstance(exception, WorkerLostError):
        expire_lost(settings.database_url, this.parent, parse_refs(args[0]))


@task_unknown.connect
def _defer_unknown(message: Any = None, name: str = "", **_: Any) -> None:
    """Defer jobs of an unknown type, in a thread: this one reads messages."""
    payload = message.decode() if message is not None else ((),)
    refs = parse_refs(payload[0][0] if payload and payload[0] else ())
    if refs:
        worker = process_name(this.node)
        start_native(defer_unknown, task_settings().database_url, worker, name, refs)


@worker_process_init.connect
def _begin_prefork(**_: Any) -> None:
    """A prefork child is a worker with one slot."""
    if os.getpid() != this.main_pid:  # a solo pool runs in the worker itself
        start_native(end_with_parent, this.main_pid)
    try:
        worker = _begin(1)
        # Before its first claim, if the store answers: its parent knows it by its presence.
        worker.ledger.post_beat().wait(ANNOUNCE_SECONDS)
    except (Exception, SystemExit) as error:
        # As above. The parent starts another child: not in a tight loop.
        logger.exception("the worker process cannot start")
        time.sleep(1.0)
        raise SystemExit(f"the worker process cannot start: {error}") from error


def _begin(slots: int) -> Worker:
    settings = task_settings()
    types = types_of(settings)
    pools = {parse_queue(queue)[0] for queue in this.queues}
    prepared = PreparedTypes()
    prepared.begin(job_type for job_type in types.values() if job_type.pool in pools)
    name = process_name(this.node)
    this.engine = open_engine(settings, process=name, role=DatabaseRole.WORKER)
    this.worker = Worker(
        this.engine,
        types,
        name=name,
        pools=this.queues,
        slots=slots,
        blobs=open_blobs(settings.blob_url),
        prepared=prepared,
        host=Host(
            stop_requested=lambda: is_set(this.stopping),
            retiring=lambda: is_set(this.retiring),
            retire=_retire_all,
            reported=_presence_kept(name, pools),
            parent=this.parent,
            node=this.node,
        ),
    )
    this.helpers = ThreadPoolExecutor(max_workers=slots, thread_name_prefix="job")
    this.worker.start()
    this.watchdog = Watchdog(this.worker, pools, settings.cancel_grace_seconds)
    this.watchdog.start()
    return this.worker


@worker_ready.connect
def _offer(sender: Any, **_: Any) -> None:
    """A green worker with free slots is given jobs; children of a prefork one claim theirs."""
    pools = [pool for pool, part in map(parse_queue, this.queues) if not part]
    if this.worker is not None and this.offers is None and is_green() and pools:
        # Room in Celery's pool beside what comes by message, for a run and for the task that waits
        # for it: without it the consumer would wait.
        sender.controller.pool.grow(2 * (this.worker.slots.count + MOST_OFFERED))
        this.offers = Offers(this.worker, pools, partial(begin, sender.controller, this.worker))
        this.offers.start()


def _presence_kept(name: str, pools: Iterable[str]) -> Callable[[], None]:
    """Let another process keep the presence; what that has to be told after each report."""
    if this.children is not None:
        return partial(this.children.note, name)
    arguments = connect_arguments(make_url(task_settings().database_url))
    lease_seconds = min(POOLS[pool].lease_seconds for pool in pools)
    keeper = PresenceKeeper(name, lease_seconds, KEEP_PRESENT, arguments)
    keeper.start()
    return keeper.note_report


def _retire(*_: Any) -> None:
    """Before the SIGTERM: there is time, so runs are to end here instead of resuming elsewhere."""
    if this.retiring is not None:
        this.retiring[0] = 1


def _retire_all() -> None:
    """A drain was requested through the row: do what the process manager would do.

    With every heartbeat until it has begun, so that dying in between costs nothing. A prefork
    child cannot go alone: its parent would start another one. A child that lost its parent has
    been adopted by a process that must not be signalled; it ends without.
    """
    _retire()
    if this.main_pid in (os.getpid(), os.getppid()):
        logger.warning("draining, as requested")
        with suppress(ProcessLookupError):
            os.kill(this.main_pid, signal.SIGTERM)


@worker_shutting_down.connect
def _drain(**_: Any) -> None:
    """Runs inside a signal handler, on top of whatever greenlet it interrupts: take no lock."""
    if this.worker is not None:
        this.worker.slots.note_drain()
    if this.stopping is not None:
        this.stopping[0] = 1


@worker_shutdown.connect
@worker_process_shutdown.connect
def _end(**_: Any) -> None:
    if this.watchdog is not None:
        this.watchdog.stop()
        this.watchdog = None
    if this.offers is not None:
        this.offers.close()
        this.offers = None
    if this.worker is not None:
        this.worker.stop()
        this.worker = None
