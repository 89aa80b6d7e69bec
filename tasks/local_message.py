"""Starts a job that was given to this worker through PostgreSQL: no message comes from the broker.

The run begins at once, in Celery's pool. Celery then gets a message that is made here, so that
Flower shows the job; its task only waits for the run (`tasks.worker.pipeline.execute`). With
telemetry the task comes first, because its span is the parent of the run's.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

import orjson
from kombu.message import Message

from models.jobs.offer import GivenJob
from models.jobs.trace_context import trace_headers
from tasks.worker import tracing
from tasks.worker.pipeline import run_given
from tasks.worker.worker import Worker

logger = logging.getLogger(__name__)


def begin(controller: Any, worker: Worker, job: GivenJob) -> None:
    """Begin the job, which the worker holds; ``controller`` is Celery's worker."""
    consumer = controller.consumer
    strategies = consumer.strategies if consumer is not None else {}
    # A type that only a newer version knows is put off by any other's task.
    name = job.type if job.type in worker.types else next(iter(worker.types))
    strategy = strategies.get(name)
    if strategy is None:  # it starts or stops; the job is handed back as it does not begin
        logger.info("job %s cannot begin: the worker does not take messages", job.ref.id)
        return
    if tracing.telemetry is None and (run := worker.slots.given.begin(job.ref)) is not None:
        greenlet = controller.pool.apply_async(run_given, (run, worker), callback=_nothing)
        run.stop = partial(greenlet.kill, block=False)
        time.sleep(0)  # it runs now, until it waits for something
    strategy(message_of(controller.app, name, job), None, _nothing, _nothing, ())


def message_of(celery: Any, name: str, job: GivenJob) -> Message:
    """What Celery would have read from the broker."""
    made = celery.amqp.create_task_message(
        job.ref.id,
        name,
        args=([list(job.ref)],),
        argsrepr="(1 job)",
        kwargsrepr="{}",
        ignore_result=True,
    )
    return Message(
        body=orjson.dumps(made.body),
        content_type="application/json",
        content_encoding="utf-8",
        headers={**made.headers, **trace_headers(job.claim.traceparent if job.claim else None)},
        properties=made.properties,
        delivery_info={"exchange": "", "routing_key": job.claim.pool if job.claim else ""},
    )


def _nothing(*_: Any) -> None:
    """For callbacks that Celery requires: there is nothing to acknowledge, and no result."""
