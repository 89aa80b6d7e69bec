"""A broker that confirms late or not at all for a while: what it was sent is there all the same."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from loadtest.figures import family
from tests.support.broker_stack import BrokerStack, broker_stack
from tests.support.database_fixture import DatabaseFixture

pytestmark = pytest.mark.long

#: Twice as long as a publisher waits.
DELAY_SECONDS = 1.0
#: After so long without a confirm a quick broker is unavailable.
SILENT_SECONDS = 5.0
#: Ten slots do a hundred of them a second: the jobs are the bottleneck, not the machine.
JOBS, JOB_SECONDS = 300, 0.1
LEAST_SHARE = 0.8
TRIES = 3


@pytest.fixture
def stack(
    database: DatabaseFixture, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> Iterator[BrokerStack]:
    with broker_stack(database, rabbitmq.service, tmp_path, "medium") as started:
        yield started


def jobs_per_second(stack: BrokerStack) -> float:
    began = time.monotonic()
    stack.wait_ended(stack.submit(JOBS, JOB_SECONDS), 60)
    return JOBS / (time.monotonic() - began)


def test_late_confirms_cost_hardly_any_throughput(stack: BrokerStack) -> None:
    quick = jobs_per_second(stack)
    stack.link.delay_seconds = DELAY_SECONDS
    stack.wait_ended(stack.submit(20, JOB_SECONDS), 20)
    late: list[float] = []
    # A moment in which the machine stands still is not the broker's.
    while len(late) < TRIES and not any(rate > LEAST_SHARE * quick for rate in late):
        late.append(jobs_per_second(stack))
    assert max(late) > LEAST_SHARE * quick, f"{late} instead of {quick} jobs per second"


def test_confirms_after_longer_than_a_silence_do_not_stop_dispatch(stack: BrokerStack) -> None:
    stack.link.delay_seconds = SILENT_SECONDS + 1.0
    time.sleep(SILENT_SECONDS + 3.0)  # unavailable for a moment: it might have been gone
    stack.wait_ended(stack.submit(100, JOB_SECONDS), 20)


def test_connection_is_opened_over_a_slow_link(stack: BrokerStack) -> None:
    stack.link.delay_seconds = DELAY_SECONDS
    stack.link.cut()
    # Once in vain, before it was noticed.
    stack.wait_ended(stack.submit(20, JOB_SECONDS), 20, most_dispatches=2)


def test_broker_that_pauses_for_three_seconds_loses_nothing(
    stack: BrokerStack, rabbitmq: Running[EmbeddedRabbitMQ]
) -> None:
    ids = stack.submit(JOBS, JOB_SECONDS)
    paused = list(family([child.pid for child in rabbitmq.children]))
    for process in paused:
        process.suspend()
    try:
        time.sleep(3.0)
    finally:
        for process in paused:
            process.resume()
    stack.wait_ended(ids, 20)
