"""Declaration of job queues: durable, of the type that the deployment has chosen.

``celeryconfig`` reads this in a gevent worker before monkey patching: do not import Celery here.
"""

from __future__ import annotations

from kombu import Exchange, Queue

from app.config import settings


def job_queue(name: str) -> Queue:
    """The queue of a pool or of a slice."""
    chosen = settings()
    return Queue(
        name,
        Exchange(""),
        routing_key=name,
        durable=True,
        queue_arguments={"x-queue-type": chosen.queue_type} if chosen.amqp else None,
    )
