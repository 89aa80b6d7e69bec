"""Celery's AMQP settings, with queues for the slices of pools, and TLS by the broker's URL.

A slice's queue is declared like its pool's as soon as a worker names it with ``-Q`` or a publisher
sends to it. Any other unknown name is refused by Celery.
"""

from __future__ import annotations

from typing import Any

from celery.app.amqp import AMQP, Queues
from kombu import Connection, Queue

from app.broker.queues import job_queue
from app.broker_url import tls_options
from models.pools import is_job_queue


class JobQueues(Queues):  # type: ignore[misc]  # Celery has no types
    """Celery's table of queues, including every slice."""

    def __missing__(self, name: str) -> Queue:
        if not is_job_queue(name):
            raise KeyError(name)
        queue = job_queue(name)
        self.add(queue)
        return queue


class TlsConnection(Connection):
    """kombu's, which with ``amqps`` expects the certificate of the node that it connects to."""

    def _init_params(self, *values: Any, **parameters: Any) -> None:
        """Called for the first node, and for each that is tried after it."""
        super()._init_params(*values, **parameters)  # type: ignore[no-untyped-call]  # kombu's
        if self.transport_cls == "amqps":
            given = self.ssl if isinstance(self.ssl, dict) else {}
            self.ssl = tls_options(given, str(self.hostname))


class JobAmqp(AMQP):  # type: ignore[misc]  # Celery has no types
    """Named by ``app/celery.py``."""

    Connection = TlsConnection
    queues_cls = JobQueues
