"""Flower's list of queues: on RabbitMQ by its management API, and on a folder, which has none."""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.request
from base64 import b64encode
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

import kombu
import psutil
import pytest

from app.broker.queue_limits import LIMITS
from app.broker.queues import job_queue
from app.stack.ports import free_port
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from models.jobs.admit import admit_group
from models.jobs.ids import new_id
from models.jobs.submission import Submission, SubmissionGroup
from models.pools import POOLS
from tests.support.commands import BIN, command, wait_for_answer
from tests.support.database_fixture import DatabaseFixture
from tests.support.waiting import wait_for

ROW = re.compile(r"<tr id=.*?</tr>", re.S)
CELL = re.compile(r"<td[^>]*>(.*?)</td>", re.S)


def ask(service: EmbeddedRabbitMQ, path: str, user: str = "", method: str = "GET") -> object:
    """What the management API answers, to Flower's user or another one; the status of a refusal."""
    address = urlsplit(service.api_url())
    credentials = user or f"{address.username}:{address.password}"
    headers = {"Authorization": f"Basic {b64encode(credentials.encode()).decode()}"}
    url = f"http://{address.hostname}:{address.port}/api/{path}"
    try:
        request = urllib.request.Request(url, headers=headers, method=method)
        with urllib.request.urlopen(request, timeout=10) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        return error.code


def test_management_api_is_for_looking_from_this_machine_only(
    rabbitmq: Running[EmbeddedRabbitMQ],
) -> None:
    service = rabbitmq.service
    with kombu.Connection(service.url()) as connection:
        job_queue("looked-at")(connection.default_channel).queue_declare()
        listed = ask(service, "queues/%2F")
        assert isinstance(listed, list) and "looked-at" in {queue["name"] for queue in listed}
        for method, path in (
            *(("DELETE", "queues/%2F/looked-at"), ("DELETE", "queues/%2F/looked-at/contents")),
            *(("GET", "users"), ("GET", "definitions")),
        ):
            assert ask(service, path, method=method) == 401, f"{method} {path}"
        assert ask(service, "queues/%2F", user="guest:guest") == 401, "anybody knows this password"
        connection.default_channel.queue_delete("medium")
    node = psutil.Process(rabbitmq.children[-1].pid)
    listening = {at.laddr for at in node.net_connections("tcp") if at.status == psutil.CONN_LISTEN}
    assert service.ports["management"] in {port for _, port in listening}
    assert {address for address, _ in listening} == {"127.0.0.1"}
    assert (service.folder / "management.password").stat().st_mode & 0o077 == 0


def test_policy_limits_the_queues_of_pools_and_slices_and_no_others(
    rabbitmq: Running[EmbeddedRabbitMQ],
) -> None:
    service = rabbitmq.service
    names = {"medium": "fairline", "short.free": "fairline", "medium-2": None, "celeryev.x": None}
    with kombu.Connection(service.url()) as connection:
        for name in names:
            connection.default_channel.queue_delete(name)
            job_queue(name)(connection.default_channel).queue_declare()
        for name, policy in names.items():
            wait_for(partial(has_policy, service, name, policy), 20)
            connection.default_channel.queue_delete(name)


def has_policy(service: EmbeddedRabbitMQ, name: str, policy: str | None) -> bool:
    """Whether RabbitMQ applies it to the queue, and with it the limits."""
    found = ask(service, f"queues/%2F/{name}")
    if not isinstance(found, dict) or "effective_policy_definition" not in found:
        return False
    limits = found["effective_policy_definition"]
    return found["policy"] == policy and all(
        limits.get(key) == value for key, value in (LIMITS if policy else {}).items()
    )


def queues_of(port: int) -> dict[str, list[str]]:
    """The rows of Flower's page of queues, by name: messages, unacknowledged, ready, consumers."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/broker", timeout=10) as answer:
        page = answer.read().decode()
    rows = (CELL.findall(row) for row in ROW.findall(page))
    return {name: numbers for name, *numbers in rows}


@pytest.fixture
def environment(
    database: DatabaseFixture, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[dict[str, str]]:
    """Of a Flower on one of the brokers, whose queues are empty."""
    env = {
        "FAIRLINE_DATABASE_URL": database.engine.url.render_as_string(hide_password=False),
        "FLOWER_PORT": str(free_port()),
        "FLOWER_ADDRESS": "127.0.0.1",
    }
    if request.param == "filesystem":
        yield {**env, "FAIRLINE_BROKER_URL": f"filesystem://{tmp_path}"}
        return
    service = request.getfixturevalue("rabbitmq").service
    with kombu.Connection(service.url()) as connection:
        channel = connection.default_channel
        for name in POOLS:
            channel.queue_delete(name)
            job_queue(name)(channel).queue_declare()
        # Of both, the first node is gone.
        gone = f"127.0.0.1:{free_port()}"
        broker = {
            "FAIRLINE_BROKER_URL": service.url().replace("@", f"@{gone},"),
            "FLOWER_BROKER_API": f"http://{gone}/api/,{service.api_url()}",
        }
        yield {**env, **broker}
        for name in POOLS:  # the next test's may be of another type
            channel.queue_delete(name)


@pytest.mark.parametrize("environment", ["rabbitmq", "filesystem"], indirect=True)
def test_flower_lists_queues_and_waiting_jobs(
    environment: dict[str, str], database: DatabaseFixture, tmp_path: Path
) -> None:
    port = int(environment["FLOWER_PORT"])
    jobs = tuple(Submission(new_id(), 1, "sleep", "medium", "{}") for _ in range(7))
    admit_group(database.engine, [SubmissionGroup(jobs)], express=False)
    with command(
        (str(BIN / "celery"), "-A", "app", "flower"), environment, tmp_path / "flower.log"
    ):
        wait_for_answer(f"http://127.0.0.1:{port}/healthcheck", seconds=60)
        wait_for(lambda: {*POOLS} <= queues_of(port).keys(), 30)
        listed = queues_of(port)
        assert listed["medium: waiting in PostgreSQL"][0] == "7"
        assert listed["short: waiting in PostgreSQL"][0] == "0"
        # RabbitMQ counts every five seconds.
        wait_for(lambda: queues_of(port)["medium"][0] == "0", 30)
