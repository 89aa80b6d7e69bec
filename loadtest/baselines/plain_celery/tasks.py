"""The baseline's Celery application: ``celery -A loadtest.baselines.plain_celery.tasks worker``.

Tuned as its docs advise and then some: ``broker_heartbeat = 0`` because Celery 5.7 under gevent
does ten messages per second without it. Other prefetch counts made no clear difference for tasks
that end at once; for those that take a while, ``PLAIN_PREFETCH=1`` is what the docs advise.

``PLAIN_SCORE_SECONDS`` makes the scoring take time. ``PLAIN_HOLD_CONNECTION=1`` puts it inside the
transaction, as code that reads a row, asks a model and writes the answer usually does.
"""

from __future__ import annotations

import os
import time
import uuid

from celery import Celery
from sqlalchemy import func, select, update

from loadtest.baselines.plain_celery.store import applications, open_engine

QUEUE = os.environ.get("PLAIN_QUEUE", "plain")
SCORE_SECONDS = float(os.environ.get("PLAIN_SCORE_SECONDS", "0"))
HOLD_CONNECTION = os.environ.get("PLAIN_HOLD_CONNECTION") == "1"

celery = Celery("plain", broker=os.environ["PLAIN_BROKER_URL"])
celery.conf.update(
    broker_heartbeat=0,
    # Celery's default; 20 and 64 were no faster.
    broker_pool_limit=10,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"confirm_publish": True, "confirm_timeout": 5},
    task_default_queue=QUEUE,
    task_acks_late=True,
    task_ignore_result=True,
    task_serializer="json",
    accept_content=["json"],
    worker_prefetch_multiplier=int(os.environ.get("PLAIN_PREFETCH", "4")),
    worker_disable_rate_limits=True,
)
engine = open_engine()


@celery.task(name="plain.score")  # type: ignore[untyped-decorator]  # Celery has no types
def score(application_id: str) -> None:
    """Computes nothing by default: what is left is the cost of a durable job."""
    mine = applications.c.id == uuid.UUID(application_id)
    if SCORE_SECONDS and not HOLD_CONNECTION:
        time.sleep(SCORE_SECONDS)
    with engine.begin() as connection:
        if HOLD_CONNECTION:
            connection.execute(select(applications.c.payload).where(mine)).scalar_one()
            time.sleep(SCORE_SECONDS)
        connection.execute(
            update(applications)
            .where(mine)
            .values(status="scored", finished_at=func.clock_timestamp())
        )
