"""Hands a job to this very worker as if its message had come from the broker.

Celery shows it to Flower, counts and runs it as ever. There is nothing to acknowledge.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

import orjson
from kombu.message import Message

from models.jobs.offer import GivenJob
from models.jobs.trace_context import trace_headers

logger = logging.getLogger(__name__)


def deliver(controller: Any, types: Sequence[str], job: GivenJob) -> None:
    """Begin the task of the job; ``controller`` is Celery's worker, ``types`` those it knows."""
    consumer = controller.consumer
    strategies = consumer.strategies if consumer is not None else {}
    # A type that only a newer version knows is put off by any other's task.
    name = job.type if job.type in types else types[0]
    strategy = strategies.get(name)
    if strategy is None:  # it starts or stops; the job is handed back as it does not begin
        logger.info("job %s cannot begin: the worker does not take messages", job.ref.id)
        return
    made = controller.app.amqp.create_task_message(
        job.ref.id,
        name,
        args=([list(job.ref)],),
        argsrepr="(1 job)",
        kwargsrepr="{}",
        ignore_result=True,
    )
    message = Message(
        body=orjson.dumps(made.body),
        content_type="application/json",
        content_encoding="utf-8",
        headers={**made.headers, **trace_headers(job.claim.traceparent if job.claim else None)},
        properties=made.properties,
        delivery_info={"exchange": "", "routing_key": job.claim.pool if job.claim else ""},
    )
    strategy(message, None, _nothing, _nothing, ())


def _nothing(*_: Any) -> None:
    """In place of an acknowledgement."""
