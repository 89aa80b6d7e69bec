"""What a Celery worker of this application does when it starts."""

from __future__ import annotations

import pytest
from celery.signals import worker_init
from celery.worker.consumer import Consumer

from app.celery import _without_delayed_delivery


def test_no_queues_are_declared_for_delays_that_the_row_keeps(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    steps = [*Consumer.Blueprint.default_steps]
    assert any("DelayedDelivery" in str(step) for step in steps)
    monkeypatch.setattr(Consumer.Blueprint, "default_steps", steps)
    assert _without_delayed_delivery in worker_init._live_receivers(None)
    _without_delayed_delivery()
    assert not any("DelayedDelivery" in str(step) for step in Consumer.Blueprint.default_steps)
