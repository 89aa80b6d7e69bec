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

from app.config import Settings, settings
from app.logs import configure_logging
from app.telemetry.hooks import end_telemetry, start_telemetry
from models.presence import process_name
from tasks.entry import register_tasks, this


def make_celery(*, current: bool = True) -> Celery:
    """An application with the settings of all processes."""
    made = Celery(
        "fairline",
        amqp="app.broker.amqp:JobAmqp",
        control="app.broker.control:JobControl",
        events="app.broker.events:SparingEvents",
        set_as_current=current,
    )
    made.config_from_object("celeryconfig")
    return made


def celery_at(own: Settings) -> Celery:
    """For publishing to the broker of these settings, which is not the process's own."""
    made = make_celery(current=False)
    url, options = own.broker
    made.conf.update(broker_url=url, broker_transport_options=options)
    return made


celery = make_celery()
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
