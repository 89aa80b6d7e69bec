"""What a chaos run finds in the queues at its end, by a URL that names several nodes."""

from __future__ import annotations

import kombu

from app.broker.queues import job_queue
from app.stack.ports import free_port
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from loadtest.chaos import facts
from models.pools import POOLS


def test_queues_are_read_by_the_node_that_is_left(rabbitmq: Running[EmbeddedRabbitMQ]) -> None:
    url = rabbitmq.service.url()
    several = url.replace("@", f"@127.0.0.1:{free_port()},")
    with kombu.Connection(url) as connection:
        channel = connection.default_channel
        for name in POOLS:
            channel.queue_delete(name)
            job_queue(name)(channel).queue_declare()
        assert facts.read_queues(several) == []
        for name in POOLS:
            channel.queue_delete(name)
