"""Messages that vanish under load: the jobs do not wait for their leases to expire."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import kombu
import pytest

from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from tests.support.broker_stack import BrokerStack, broker_stack
from tests.support.database_fixture import DatabaseFixture

pytestmark = pytest.mark.long

QUEUES = ("short", "medium")
#: The leases of both pools are longer: 10 and 30 s.
AT_MOST_SECONDS = 9.0
#: RabbitMQ's limit is 20.
RETURNS = 25


@pytest.fixture
def stack(
    database: DatabaseFixture, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> Iterator[BrokerStack]:
    with broker_stack(database, rabbitmq.service, tmp_path, *QUEUES) as started:
        yield started


@pytest.mark.parametrize("act", ["queue_delete", "queue_purge"])
def test_messages_that_vanish_are_sent_again_soon(
    stack: BrokerStack, rabbitmq: Running[EmbeddedRabbitMQ], act: str
) -> None:
    with stack.frozen_workers():
        ids = [*stack.submit(60, 0.1), *stack.submit(300, 0.1, "short")]
        stack.wait(lambda: stack.count(ids, "dispatched") > 100, "dispatches")
        with kombu.Connection(rabbitmq.service.url()) as connection:
            for name in QUEUES:
                getattr(connection.default_channel, act)(name)
    stack.wait_ended(ids, AT_MOST_SECONDS, most_dispatches=5)
    # The workers consume their queues again.
    stack.wait_ended([*stack.submit(20, 0.1), *stack.submit(20, 0.1, "short")], 5)


def test_messages_that_were_returned_too_often_are_sent_again_soon(
    stack: BrokerStack, rabbitmq: Running[EmbeddedRabbitMQ]
) -> None:
    """Quorum queues of RabbitMQ 4 drop a message then; others keep it."""
    with stack.frozen_workers():
        # Of a type that was not measured yet, so that each has a message of its own.
        ids = stack.submit(60, 0.1, type_name="echo")
        stack.wait(lambda: stack.count(ids, "dispatched") >= 20, "dispatches")
        with kombu.Connection(rabbitmq.service.url()) as connection:
            # More than the worker fetches.
            stack.wait(lambda: return_all(connection, "medium") > 5, "messages that wait")
            left = [return_all(connection, "medium") for _ in range(RETURNS)]
    # Kept ones are never fewer; more may have come meanwhile.
    assert left[-1] == 0 or left == sorted(left), "some were dropped and others were not"
    stack.wait_ended(ids, AT_MOST_SECONDS, most_dispatches=5)


def return_all(connection: kombu.Connection, queue: str) -> int:
    """Take every message and lose the channel, as a consumer that crashes; how many there were."""
    with connection.channel() as channel:
        taken = 0
        while channel.basic_get(queue) is not None:
            taken += 1
        return taken
