"""Celery's remote control, with a queue of its own for each connection of a worker.

The queue is exclusive. One whose node was lost may stay locked until that node is back, because
RabbitMQ does not always remove it; a worker that declares the same name would wait for it.
"""

from __future__ import annotations

from celery.app.control import Control
from kombu import Queue
from kombu.pidbox import Mailbox

from app.config import settings
from models.jobs.ids import new_id


class JobMailbox(Mailbox):
    """Each queue has a new name, which nobody needs to know: commands come by an exchange."""

    def get_queue(self, hostname: str) -> Queue:
        queue: Queue = super().get_queue(hostname)  # type: ignore[no-untyped-call]  # kombu's
        if settings().amqp:
            queue.name = f"{queue.name}.{new_id()}"
        return queue


class JobControl(Control):  # type: ignore[misc]  # Celery has no types
    """Named by ``app/celery.py``."""

    Mailbox = JobMailbox
