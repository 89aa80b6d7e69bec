"""The publisher and a real RabbitMQ: what counts as delivered, and how long that may take."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import kombu
import psutil
import pytest
from celery import Celery

from app.broker.publish import Publisher, SentMessage
from app.broker.queues import job_queue
from app.errors import BrokerUnavailable
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from loadtest.figures import family
from models.jobs.dispatch import Dispatch
from models.jobs.ids import new_id
from models.tallies import Tallies, TallyKind
from tests.support.rabbitmq_nodes import with_address
from tests.support.slow_link import SlowLink
from tests.support.waiting import wait_for

#: What one call may take: the limit, and what a busy machine adds.
LIMIT_SECONDS, AT_MOST_SECONDS = 0.5, 4.0
#: The limit where everything is to be confirmed: enough for a broker on a busy machine.
PATIENT_SECONDS = 15.0


@pytest.fixture
def link(rabbitmq: Running[EmbeddedRabbitMQ]) -> Iterator[SlowLink]:
    with SlowLink("127.0.0.1", rabbitmq.service.ports["amqp"]) as opened:
        yield opened


@pytest.fixture
def queues(rabbitmq: Running[EmbeddedRabbitMQ]) -> Iterator[kombu.Connection]:
    """The broker beside the slow link, with nothing in its queues."""
    with kombu.Connection(rabbitmq.service.url()) as connection:
        drop_queues(connection)
        yield connection
        drop_queues(connection)


def drop_queues(connection: kombu.Connection) -> None:
    """Tests before this one may have left queues of another type, which cannot be declared."""
    for name in ("short", "medium", "long"):
        connection.default_channel.queue_delete(name)


@pytest.fixture
def counted() -> Tallies:
    return Tallies()


@pytest.fixture
def celery(link: SlowLink, queues: kombu.Connection, rabbitmq: Running[EmbeddedRabbitMQ]) -> Celery:
    celery = Celery("test", amqp="app.broker.amqp:JobAmqp")
    celery.config_from_object("celeryconfig")
    celery.conf.update(
        broker_url=with_address(rabbitmq.service, f"127.0.0.1:{link.port}"),
        broker_transport_options={"connect_timeout": 2},
        task_queues=[job_queue(name) for name in ("short", "medium", "long")],
    )
    return celery


@pytest.fixture
def publisher(celery: Celery, counted: Tallies) -> Iterator[Publisher]:
    publisher = Publisher(celery, PATIENT_SECONDS, counted)
    open_within(publisher, 15.0)
    yield publisher
    publisher.close()


@pytest.fixture
def hasty(celery: Celery) -> Iterator[Publisher]:
    """A publisher that soon stops waiting."""
    publisher = Publisher(celery, LIMIT_SECONDS)
    open_within(publisher, 15.0)
    yield publisher
    publisher.close()


def open_within(publisher: Publisher, seconds: float) -> None:
    """Raises what kept it from being open."""
    deadline = time.monotonic() + seconds
    while True:
        try:
            return publisher.ping()
        except BrokerUnavailable:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def is_up(publisher: Publisher) -> bool:
    try:
        publisher.ping()
    except BrokerUnavailable:
        return False
    return True


def dispatches(count: int, pool: str = "medium") -> list[Dispatch]:
    return [Dispatch(new_id(), 1, "echo", pool) for _ in range(count)]


def messages(queues: kombu.Connection, name: str) -> int:
    declared = queues.default_channel.queue_declare(name, passive=True)
    return int(declared.message_count)


def test_confirmed_in_time(
    publisher: Publisher, queues: kombu.Connection, counted: Tallies
) -> None:
    assert publisher.publish(dispatches(5))
    assert publisher.publish([*dispatches(1), *dispatches(3, "short")])
    assert messages(queues, "medium") == 6
    assert publisher.undelivered() == []
    assert counted.take() == {
        (TallyKind.DISPATCHED, "medium"): (6, 0),
        (TallyKind.DISPATCHED, "short"): (3, 0),
    }


def test_jobs_of_every_green_pool_share_messages_as_their_length_permits(
    publisher: Publisher, queues: kombu.Connection
) -> None:
    assert publisher.publish(dispatches(80), 1, {"echo": 0.05})
    assert messages(queues, "medium") == 2, "a fifth of a second for each of ten slots"
    queues.default_channel.queue_purge("medium")
    assert publisher.publish(dispatches(40), 4, {"echo": 0.05})
    assert messages(queues, "medium") == 4, "one for each worker"
    queues.default_channel.queue_purge("medium")
    assert publisher.publish(dispatches(4), 1, {"echo": 1.5})
    assert messages(queues, "medium") == 4
    queues.default_channel.queue_purge("medium")
    assert publisher.publish(dispatches(80), 1, {"echo": 1.5}, slots=300)
    assert messages(queues, "medium") == 2, "a worker with 300 slots"
    queues.default_channel.queue_purge("medium")
    assert publisher.publish(dispatches(4, "long"), 1, {"echo": 0.05})
    assert messages(queues, "long") == 4, "a prefork process runs one at a time"


def test_a_message_carries_the_trace_of_its_first_job(
    publisher: Publisher, queues: kombu.Connection
) -> None:
    trace = f"00-{'a' * 32}-{'b' * 16}-01"
    traced, plain = dispatches(2)
    publisher.publish([traced._replace(traceparent=f"{trace} rojo=1"), plain])
    carried = [queues.default_channel.basic_get("medium").headers for _ in range(2)]
    found = {sent["id"]: (sent.get("traceparent"), sent.get("tracestate")) for sent in carried}
    assert found == {traced.id: (trace, "rojo=1"), plain.id: (None, None)}


def test_late_confirm_is_no_failure_and_nobody_waits_for_it_twice(
    hasty: Publisher, link: SlowLink, queues: kombu.Connection
) -> None:
    link.delay_seconds = 1.0
    began = time.monotonic()
    assert not hasty.publish(dispatches(5))
    assert time.monotonic() - began < AT_MOST_SECONDS
    began = time.monotonic()
    for _ in range(20):
        assert not hasty.publish(dispatches(1, "short"))
        hasty.ping()
    assert time.monotonic() - began < AT_MOST_SECONDS, "each of them waited"
    wait_for(lambda: messages(queues, "medium") == 5 and messages(queues, "short") == 20)
    assert hasty.undelivered() == []
    link.delay_seconds = 0.0
    wait_for(lambda: hasty.publish(dispatches(1)))
    assert hasty.undelivered() == []


def test_unconfirmed_on_a_lost_connection_is_undelivered(hasty: Publisher, link: SlowLink) -> None:
    link.delay_seconds = 60.0
    sent = dispatches(3)
    assert not hasty.publish(sent)
    link.cut()
    found: list[Dispatch] = []
    wait_for(lambda: bool(found.extend(hasty.undelivered()) or found))
    assert found == sent
    assert hasty.undelivered() == []
    link.delay_seconds = 0.0
    wait_for(lambda: is_up(hasty))
    wait_for(lambda: hasty.publish(dispatches(1)))


def stands_still(process: psutil.Process) -> bool:
    """Whether all threads of a process are stopped."""
    threads = Path(f"/proc/{process.pid}/task").glob("*/stat")
    return all(stat.read_text().rpartition(")")[2].split()[0] == "T" for stat in threads)


def test_silent_broker_is_unavailable_and_costs_no_caller_more_than_the_limit(
    hasty: Publisher, celery: Celery, rabbitmq: Running[EmbeddedRabbitMQ]
) -> None:
    celery.conf.broker_transport_options = {"connect_timeout": 2 * AT_MOST_SECONDS}
    sent = dispatches(3)
    frozen = list(family([child.pid for child in rabbitmq.children]))
    for process in frozen:
        process.suspend()
    # A thread that is in the kernel goes on until it leaves it, and may still confirm something.
    wait_for(lambda: all(map(stands_still, frozen)))
    try:
        longest, calls = 0.0, 0
        assert not hasty.publish(sent)
        deadline = time.monotonic() + 30
        while calls < 5:
            assert time.monotonic() < deadline, "a broker that says nothing was available"
            began = time.monotonic()
            calls += not is_up(hasty)
            longest = max(longest, time.monotonic() - began)
            time.sleep(0.1)
        assert longest < AT_MOST_SECONDS
        assert hasty.undelivered() == sent
    finally:
        for process in frozen:
            process.resume()
    wait_for(lambda: is_up(hasty), 30)


def test_confirms_later_than_a_silence_are_late_and_not_missing(
    celery: Celery, link: SlowLink, queues: kombu.Connection
) -> None:
    celery.conf.broker_transport_options = {"connect_timeout": 0.5}
    publisher = Publisher(celery, 0.1)
    open_within(publisher, 15.0)
    link.delay_seconds = 2.0  # silent is who confirms nothing for one second
    try:
        first = dispatches(3)
        assert not publisher.publish(first)
        wait_for(lambda: not is_up(publisher))
        assert publisher.undelivered() == first, "it may be gone, and another connection opens"
        wait_for(lambda: is_up(publisher), 2.5)
        later, until = [], time.monotonic() + 4.0
        while time.monotonic() < until:
            later += dispatches(1, "short")
            publisher.publish(later[-1:])
            publisher.ping()
            time.sleep(0.1)
        assert publisher.undelivered() == []
        wait_for(lambda: messages(queues, "short") == len(later))
        link.delay_seconds = 0.8  # of each step of opening another one
        link.cut()
        wait_for(lambda: not is_up(publisher))
        wait_for(lambda: is_up(publisher))
    finally:
        publisher.close()


def test_message_that_is_never_confirmed_is_given_up_while_others_are(
    hasty: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.broker.publish.silence", lambda *_: 1.0)
    take, sent = hasty._take, dispatches(1)
    lost = hasty._tag + 1

    def take_others(tag: int, multiple: bool) -> list[SentMessage]:
        kept = hasty._unconfirmed.pop(lost, None)
        found = take(tag, multiple)
        if kept:
            hasty._unconfirmed = {lost: kept, **hasty._unconfirmed}
        return found

    monkeypatch.setattr(hasty, "_take", take_others)
    assert not hasty.publish(sent)
    found: list[Dispatch] = []
    wait_for(lambda: (is_up(hasty), found.extend(hasty.undelivered())) and bool(found))
    assert found == sent
    monkeypatch.undo()
    wait_for(lambda: is_up(hasty))
    wait_for(lambda: hasty.publish(dispatches(1)))


def test_message_for_a_deleted_queue_is_undelivered_and_its_queue_is_declared_again(
    publisher: Publisher, queues: kombu.Connection
) -> None:
    for name in ("short", "medium", "long"):
        queues.default_channel.queue_delete(name)
    sent = [*dispatches(3), *dispatches(40, "short"), *dispatches(2, "long")]
    assert publisher.publish(sent)
    returned = publisher.undelivered()
    assert {each.pool for each in returned} == {"short", "medium", "long"}
    assert publisher.publish(returned)
    assert publisher.undelivered() == []
    assert messages(queues, "medium") == 3
    assert messages(queues, "short") == 2, "twenty jobs each"
    assert messages(queues, "long") == 2


def test_deleted_queue_of_a_slice_is_declared_again(
    publisher: Publisher, queues: kombu.Connection
) -> None:
    sliced = [Dispatch(new_id(), 1, "echo", "medium", slice="free") for _ in range(3)]
    assert publisher.publish(sliced[:1])
    queues.default_channel.queue_delete("medium.free")
    assert publisher.publish(sliced[1:])
    returned = publisher.undelivered()
    assert returned and publisher.publish(returned)
    assert publisher.undelivered() == []
    assert messages(queues, "medium.free") == 2
    queues.default_channel.queue_delete("medium.free")


def test_refused_message_is_undelivered(publisher: Publisher, queues: kombu.Connection) -> None:
    full = {"x-max-length": 1, "x-overflow": "reject-publish"}
    queues.default_channel.queue_delete("medium")
    queues.default_channel.queue_declare("medium", durable=True, auto_delete=False, arguments=full)
    sent = dispatches(3)
    assert publisher.publish(sent)
    assert sorted(publisher.undelivered()) == sorted(sent[1:])
