"""A URL that names several nodes: publishers and workers go on by the next one when theirs is gone
or frozen. Two links to one RabbitMQ stand for two nodes of a cluster."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import kombu
import psutil
import pytest
from celery import Celery

from app.broker.publish import Publisher
from app.broker.queues import job_queue, queues_with_other_arguments
from app.errors import BrokerUnavailable
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from loadtest.fleet import QUEUE_TYPE
from models.jobs.dispatch import Dispatch
from models.jobs.ids import new_id
from models.pools import POOLS
from tests.support.broker_stack import BrokerStack
from tests.support.commands import SCHEDULER, command, worker
from tests.support.database_fixture import DatabaseFixture
from tests.support.rabbitmq_nodes import with_address
from tests.support.slow_link import SlowLink
from tests.support.waiting import wait_for

FROZEN = 3600.0
#: Two missed heartbeats of five seconds, the loop of a worker, and a busy machine.
NOTICED_SECONDS = 30.0

Links = tuple[SlowLink, SlowLink]


@pytest.fixture
def links(rabbitmq: Running[EmbeddedRabbitMQ]) -> Iterator[Links]:
    port = rabbitmq.service.ports["amqp"]
    with SlowLink("127.0.0.1", port) as one, SlowLink("127.0.0.1", port) as two:
        yield one, two


@pytest.fixture
def queues(
    rabbitmq: Running[EmbeddedRabbitMQ], request: pytest.FixtureRequest
) -> Iterator[kombu.Connection]:
    """The broker beside the links, without the queues of other tests; its parameter is the type of
    queues that somebody else has declared, with a limit of his own."""
    with kombu.Connection(rabbitmq.service.url()) as connection:
        for name in POOLS:
            connection.default_channel.queue_delete(name)
            if type_ := getattr(request, "param", None):
                arguments = {"x-queue-type": type_, "x-max-length": 1000}
                kombu.Queue(name, durable=True, queue_arguments=arguments)(
                    connection.default_channel
                ).queue_declare()
        yield connection
        for name in POOLS:
            connection.default_channel.queue_delete(name)


@pytest.fixture
def celery(links: Links, queues: kombu.Connection, rabbitmq: Running[EmbeddedRabbitMQ]) -> Celery:
    celery = Celery("test", amqp="app.broker.amqp:JobAmqp")
    celery.config_from_object("celeryconfig")
    celery.conf.update(
        broker_url=[with_address(rabbitmq.service, f"127.0.0.1:{link.port}") for link in links],
        broker_transport_options={"connect_timeout": 2},
        task_queues=[job_queue(name) for name in POOLS],
    )
    return celery


def dispatches(number: int) -> list[Dispatch]:
    return [Dispatch(new_id(), 1, "echo", "medium") for _ in range(number)]


def is_published(publisher: Publisher) -> bool:
    try:
        return publisher.publish(dispatches(1)) and not publisher.undelivered()
    except BrokerUnavailable:
        return False


@pytest.mark.parametrize("queues", ["quorum", "classic"], indirect=True)
def test_publisher_uses_a_queue_that_exists_with_other_arguments(
    celery: Celery, queues: kombu.Connection
) -> None:
    publisher = Publisher(celery, 0.5)
    try:
        wait_for(lambda: is_published(publisher))
        publisher.publish([Dispatch(new_id(), 1, "echo", "long")])
        wait_for(lambda: queues.default_channel.queue_declare("long", passive=True)[1] == 1)
        queues.default_channel.queue_delete("medium")
        wait_for(lambda: is_published(publisher))
    finally:
        publisher.close()
        queues_with_other_arguments.clear()


def test_publisher_goes_on_at_once_by_another_node(celery: Celery, links: Links) -> None:
    publisher = Publisher(celery, 0.5)
    wait_for(lambda: is_published(publisher))
    port = links[0].port
    links[0].__exit__(None, None, None)
    wait_for(lambda: is_published(publisher))
    assert urls_of(celery) == [links[1].port, port], "the lost one is tried last from here on"
    publisher.close()


def urls_of(celery: Celery) -> list[int]:
    """Ports of the nodes, in the order in which they are tried."""
    return [int(url.rstrip("/").rpartition(":")[2]) for url in celery.conf.broker_url]


def test_publisher_leaves_a_frozen_node_and_does_not_begin_with_it_again(
    celery: Celery, links: Links, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.broker.publish.silence", lambda *_: 1.0)
    publisher = Publisher(celery, 0.5)
    wait_for(lambda: is_published(publisher))
    links[0].delay_seconds = FROZEN
    assert not is_published(publisher)
    wait_for(lambda: is_published(publisher))
    assert urls_of(celery) == [links[1].port, links[0].port]
    links[1].cut()
    # The frozen one is next, for two seconds, and then the other one again.
    wait_for(lambda: is_published(publisher))
    publisher.close()


def users_of(port: int, pid: int) -> int:
    """Connections of a process to a port."""
    process = psutil.Process(pid)
    children = [process, *process.children(recursive=True)]
    return sum(
        bool(at.raddr) and at.raddr.port == port and at.status == psutil.CONN_ESTABLISHED
        for one in children
        for at in one.net_connections("tcp")
    )


@pytest.fixture
def stack(
    database: DatabaseFixture,
    links: Links,
    queues: kombu.Connection,
    rabbitmq: Running[EmbeddedRabbitMQ],
    tmp_path: Path,
) -> Iterator[BrokerStack]:
    """A scheduler, and workers of both kinds, whose URL names both nodes."""
    nodes = ",".join(f"127.0.0.1:{link.port}" for link in links)
    env = {
        "FAIRLINE_DATABASE_URL": database.engine.url.render_as_string(hide_password=False),
        "FAIRLINE_BROKER_URL": with_address(rabbitmq.service, nodes),
        "FAIRLINE_QUEUE_TYPE": QUEUE_TYPE,
        "FAIRLINE_POOLS": '{"medium": {"lease_seconds": 60}, "long": {"lease_seconds": 60}}',
        "PYTHONPATH": ".",
    }
    database.leader.resign()
    with ExitStack() as processes:
        processes.enter_context(command(SCHEDULER, env, tmp_path / "scheduler.log"))
        started = BrokerStack(database, links[0], tmp_path)
        for pool in ("medium", "long"):
            argv = worker(pool, 2, POOLS[pool].concurrency)
            process = processes.enter_context(command(argv, env, tmp_path / f"{pool}.log"))
            started.workers.append(process.pid)
        run_some(started, 90)
        yield started


def run_some(stack: BrokerStack, seconds: float, dispatches: int = 1) -> None:
    """Jobs of both pools, each of which runs once."""
    ids = [*stack.submit(6, 0.1), *stack.submit(4, 0.1, "long")]
    stack.wait_ended(ids, seconds, dispatches)


@pytest.mark.parametrize("queues", ["quorum", "classic"], indirect=True)
def test_queues_that_exist_with_other_arguments_are_used_as_they_are(
    stack: BrokerStack, queues: kombu.Connection
) -> None:
    assert "used as it is" in stack.log()
    for name in ("medium", "long"):
        queues.default_channel.queue_delete(name)
    run_some(stack, 20, dispatches=4)
    wanted = kombu.Queue("medium", durable=True, queue_arguments={"x-queue-type": QUEUE_TYPE})
    wanted(queues.default_channel).queue_declare()  # as it should be, else refused


def test_workers_and_scheduler_leave_a_node_that_is_gone(stack: BrokerStack, links: Links) -> None:
    port = links[0].port
    links[0].__exit__(None, None, None)
    run_some(stack, 20, dispatches=3)
    for pid in stack.workers:
        assert users_of(port, pid) == 0


def test_workers_leave_a_frozen_node(stack: BrokerStack, links: Links) -> None:
    frozen, other = links if users_of(links[0].port, stack.workers[0]) else links[::-1]
    frozen.delay_seconds = FROZEN
    for pid in stack.workers:
        wait_for(partial(users_of, other.port, pid), NOTICED_SECONDS)
    assert "heartbeats missed" in stack.log()
    run_some(stack, 20, dispatches=3)
