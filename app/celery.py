"""The Celery application: ``celery -A app worker`` and ``celery -A app flower`` find it here."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import (
    setup_logging,
    worker_init,
    worker_process_init,
    worker_process_shutdown,
    worker_shutdown,
)

from app.config import settings
from app.logs import configure_logging
from app.telemetry.hooks import end_telemetry, start_telemetry
from models.presence import process_name
from tasks.entry import register_tasks, this

celery = Celery(
    "fairline",
    amqp="app.broker.amqp:JobAmqp",
    control="app.broker.control:JobControl",
    events="app.broker.events:SparingEvents",
)
celery.config_from_object("celeryconfig")
job_types = register_tasks(celery, settings())


@setup_logging.connect
def _configure_logging(loglevel: Any = None, **_: Any) -> None:
    configure_logging(loglevel)


@worker_init.connect
@worker_process_init.connect
def _start_telemetry(**_: Any) -> None:
    """After the worker's own handlers; the parent of a prefork pool has no engine."""
    if this.engine is not None:
        start_telemetry("worker", this.engine, process_name(this.node))


@worker_shutdown.connect
@worker_process_shutdown.connect
def _end_telemetry(**_: Any) -> None:
    """A prefork child leaves without its exit handlers."""
    end_telemetry()
