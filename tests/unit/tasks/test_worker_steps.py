"""What a Celery worker of this application does when it starts."""

from __future__ import annotations

from celery.utils.imports import symbol_by_name
from celery.worker.consumer import Consumer

from app.celery import celery


def test_no_queues_are_declared_for_delays_that_the_row_keeps() -> None:
    ours = symbol_by_name(celery.conf.worker_consumer)
    known = Consumer.Blueprint.default_steps
    assert any("DelayedDelivery" in str(step) for step in known)
    assert [step for step in known if "DelayedDelivery" not in str(step)] == [
        *ours.Blueprint.default_steps
    ]
