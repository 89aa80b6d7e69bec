"""Celery shims: one Celery task a job type, and the life of a worker process.

Celery carries messages and shows them in Flower; what happens to a job is decided by the
row. A task therefore never fails for Celery: its outcome is in the row.
"""

from __future__ import annotations

import logging
import sys
import time
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from celery import Celery
from celery.exceptions import Reject
from celery.signals import (
    worker_init,
    worker_process_init,
    worker_process_shutdown,
    worker_shutdown,
    worker_shutting_down,
)
from sqlalchemy import Engine

from models.errors import StateStoreUnavailable
from models.ids import parse_id
from models.pools import POOLS
from models.presence import process_name
from models.session import open_engine
from tasks.config import TaskSettings, task_settings
from tasks.errors import JobError
from tasks.registry import JobType, load_types
from tasks.runtime.claim import JobRef
from tasks.runtime.execute import execute
from tasks.runtime.worker import Worker

logger = logging.getLogger(__name__)


class WorkerProcess:
    """The worker runtime of this process, once Celery has started it."""

    engine: Engine | None = None
    worker: Worker | None = None
    helpers: ThreadPoolExecutor | None = None
    pools: Sequence[str] = tuple(POOLS)


this = WorkerProcess()


def register_tasks(celery: Celery, settings: TaskSettings) -> dict[str, JobType]:
    """Give every job type a Celery task of its name."""
    types = load_types(settings.job_modules)
    for name in types:
        celery.task(_run_message, name=name, bind=True, ignore_result=True)
    return types


def _run_message(task: Any, refs: list[list[Any]]) -> None:
    """Body of every task: ``refs`` is a list of [job id, lease number]."""
    if this.worker is None or this.helpers is None:
        raise RuntimeError("this process is no worker")
    message = parse_refs(refs)
    if not message:
        return
    try:
        execute(message, this.worker, this.helpers)
    except StateStoreUnavailable as error:
        # Only while the worker stops: nothing was claimed, another worker may.
        raise Reject(str(error), requeue=True) from error


def parse_refs(refs: Any) -> tuple[JobRef, ...]:
    """The references of a message; what is no reference is dropped, the row decides anyway."""
    if not isinstance(refs, list):
        return ()
    message = []
    for ref in refs:
        match ref:
            case [str(text), int(lease)] if 0 <= lease < 2**31 and (job_id := parse_id(text)):
                message.append(JobRef(job_id, lease))
            case _:
                logger.warning("dropped something that is no reference: %.100r", ref)
    return tuple(message)


def slots_ahead(slots: int) -> int:
    """Messages a green worker takes beyond its slots, so that no slot waits for a claim."""
    return max(1, slots // 5)


def make_sleep_green() -> None:
    """Let Celery's and kombu's pauses be those of one greenlet, not of the process.

    While gevent patches, it looks at every object there is. That makes Celery's proxies load
    kombu and the configuration before ``time.sleep`` is green, and whoever imported it by name
    keeps the old one: waiting for a lost broker then stopped the whole process, heartbeats
    included, until its leases ran out.
    """
    from gevent.monkey import get_original, is_module_patched

    if not is_module_patched("time"):
        return
    blocking = get_original("time", "sleep")
    for name, module in list(sys.modules.items()):
        if name.startswith(("celery.", "kombu.")) and vars(module).get("sleep") is blocking:
            vars(module)["sleep"] = time.sleep


@worker_init.connect
def _begin_green(sender: Any, **_: Any) -> None:
    """Green pools run in this very process; ``worker_process_init`` never fires for them."""
    this.pools = tuple(name for name in sender.app.amqp.queues.consume_from if name in POOLS)
    if "prefork" in str(sender.pool_cls):
        return
    make_sleep_green()
    slots = sender.concurrency
    # Celery's concurrency becomes the number of messages at hand; slots stay what -c said.
    sender.concurrency = slots + slots_ahead(slots)
    try:
        _begin(slots)
    except Exception as error:
        # Celery only logs what a signal's handler raises, and would go on to take messages.
        logger.exception("the worker cannot start")
        raise SystemExit(f"the worker cannot start: {error}") from error


@worker_process_init.connect
def _begin_prefork(**_: Any) -> None:
    """A prefork child is a worker of its own with one slot."""
    _begin(1)


def _begin(slots: int) -> None:
    settings = task_settings()
    types = load_types(settings.job_modules)
    prepare_types(job_type for job_type in types.values() if job_type.pool in this.pools)
    name = process_name("worker")
    this.engine = open_engine(settings, process=name)
    this.worker = Worker(this.engine, types, name=name, pools=this.pools, slots=slots)
    this.helpers = ThreadPoolExecutor(max_workers=slots, thread_name_prefix="job")
    this.worker.start()


def prepare_types(types: Iterable[JobType]) -> None:
    """Let job types get ready; a worker that could run none of them well does not start."""
    for job_type in types:
        if job_type.prepare is not None:
            try:
                job_type.prepare()
            except JobError as error:
                raise SystemExit(f"{job_type.name}: {error}") from None


@worker_shutting_down.connect
def _drain(**_: Any) -> None:
    """Runs inside a signal handler, on top of whatever greenlet it met: take no lock here."""
    if this.worker is not None:
        this.worker.draining = True


@worker_shutdown.connect
@worker_process_shutdown.connect
def _end(**_: Any) -> None:
    if this.worker is not None:
        this.worker.stop()
        this.worker = None
