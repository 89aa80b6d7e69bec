"""The baseline's Celery application: ``celery -A loadtest.baselines.plain_celery.tasks worker``.

Tuned as its docs advise and then some: ``broker_heartbeat = 0`` because Celery 5.7 under gevent
does ten messages a second without it. Other prefetch counts made no clear difference.
"""

from __future__ import annotations

import os
import uuid

from celery import Celery
from sqlalchemy import func, update

from loadtest.baselines.plain_celery.store import applications, open_engine

QUEUE = "plain"

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
    worker_prefetch_multiplier=4,
    worker_disable_rate_limits=True,
)
engine = open_engine()


@celery.task(name="plain.score")  # type: ignore[untyped-decorator]  # Celery has no types
def score(application_id: str) -> None:
    """Nothing to compute: what is left is the cost of a durable job."""
    with engine.begin() as connection:
        connection.execute(
            update(applications)
            .where(applications.c.id == uuid.UUID(application_id))
            .values(status="scored", finished_at=func.clock_timestamp())
        )
