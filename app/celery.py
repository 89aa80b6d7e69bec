"""The Celery application: ``celery -A app worker`` and ``celery -A app flower`` find it here."""

from __future__ import annotations

from typing import Any

from celery import Celery
from celery.signals import setup_logging, worker_init, worker_process_init

from app.config import settings
from app.logs import configure_logging
from app.telemetry import start_telemetry
from tasks.entry import register_tasks

celery = Celery("fairline")
celery.config_from_object("celeryconfig")
job_types = register_tasks(celery, settings())


@setup_logging.connect
def _configure_logging(loglevel: Any = None, **_: Any) -> None:
    configure_logging(loglevel)


@worker_init.connect
def _telemetry_green(sender: Any, **_: Any) -> None:
    if "prefork" not in str(sender.pool_cls):
        start_telemetry("worker")


@worker_process_init.connect
def _telemetry_prefork(**_: Any) -> None:
    start_telemetry("worker")
