"""Celery's AMQP settings, with queues for the slices of pools.

A slice's queue is declared like its pool's as soon as a worker names it with ``-Q`` or a publisher
sends to it. Any other unknown name is refused by Celery.
"""

from __future__ import annotations

from celery.app.amqp import AMQP, Queues
from kombu import Queue

from app.broker.queues import job_queue
from models.pools import is_job_queue


class JobQueues(Queues):  # type: ignore[misc]  # Celery has no types
    """Celery's table of queues, including every slice."""

    def __missing__(self, name: str) -> Queue:
        if not is_job_queue(name):
            raise KeyError(name)
        queue = job_queue(name)
        self.add(queue)
        return queue


class JobAmqp(AMQP):  # type: ignore[misc]  # Celery has no types
    """Named by ``app/celery.py``."""

    queues_cls = JobQueues
