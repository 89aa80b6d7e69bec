"""The limits of job queues: the scheduler keeps them at RabbitMQ as far as its user may."""

from __future__ import annotations

import json
import logging
import re
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from app.broker.management import PORTS, ManagementApi
from app.broker.queue_limits import LIMITS, NAME, queue_policy
from app.scheduler.maintenance.limit_keeper import REFUSED_SECONDS, LimitKeeper
from app.stack.ports import free_port
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from models.pools import POOLS
from tests.support.commands import command
from tests.support.database_fixture import DatabaseFixture
from tests.support.rabbitmq_nodes import evaluate
from tests.support.waiting import wait_for

VHOST, USER, PASSWORD = "team/a", "keeper", "s:cret@/"
MAKE = f"""
    rabbit_vhost:add(<<"{VHOST}">>, <<"test">>),
    rabbit_auth_backend_internal:add_user(<<"{USER}">>, <<"{PASSWORD}">>, <<"test">>),
    rabbit_auth_backend_internal:set_tags(<<"{USER}">>, [policymaker], <<"test">>),
    All = <<".*">>,
    [rabbit_auth_backend_internal:set_permissions(User, <<"{VHOST}">>, All, All, All, <<"test">>)
     || User <- [<<"{USER}">>, <<"guest">>]], ok.
"""
REMOVE = f"""
    rabbit_auth_backend_internal:delete_user(<<"{USER}">>, <<"test">>),
    rabbit_vhost:delete(<<"{VHOST}">>, <<"test">>).
"""
PATH = f"/api/policies/team%2Fa/{NAME}"
#: A scheduler whose broker is at its usual port, as far as it knows.
SCHEDULER = """
from app.broker.management import PORTS
PORTS[{amqp}] = {management}
from app.scheduler.__main__ import main
main()
"""


@pytest.fixture(scope="module")
def node(rabbitmq: Running[EmbeddedRabbitMQ]) -> Iterator[EmbeddedRabbitMQ]:
    """With a user who may set policies in a vhost of the test's own."""
    assert evaluate(rabbitmq.service, MAKE) == "ok"
    yield rabbitmq.service
    evaluate(rabbitmq.service, REMOVE)


@pytest.fixture
def usual(node: EmbeddedRabbitMQ, monkeypatch: pytest.MonkeyPatch) -> EmbeddedRabbitMQ:
    """As if its ports were those that RabbitMQ usually has."""
    monkeypatch.setitem(PORTS, node.ports["amqp"], node.ports["management"])
    return node


def url(node: EmbeddedRabbitMQ, user: str = "keeper:s%3Acret%40%2F", *before: str) -> str:
    nodes = ",".join((*before, f"127.0.0.1:{node.ports['amqp']}"))
    return f"amqp://{user}@{nodes}/team%2Fa"


def policy(node: EmbeddedRabbitMQ) -> Any:
    """The policy that RabbitMQ has."""
    return api_of(node).ask("GET", PATH)[1]


def wanted(node: EmbeddedRabbitMQ) -> Any:
    """The policy that its version should have."""
    version = api_of(node).version()
    assert re.fullmatch(r"\d+\.\d+\.\d+.*", version)
    return queue_policy(POOLS, VHOST, version)


def forget(node: EmbeddedRabbitMQ) -> None:
    api_of(node).ask("DELETE", PATH)
    assert policy(node) == {}


def api_of(node: EmbeddedRabbitMQ) -> ManagementApi:
    return ManagementApi(url(node), node.ports["management"])


def test_limits_are_set_and_kept_and_told_once(
    usual: EmbeddedRabbitMQ, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    keeper = LimitKeeper(url(usual))
    for _ in range(3):
        keeper.run_once(0.0)
    assert policy(usual) == wanted(usual)
    forget(usual)
    keeper.run_once(0.0)
    assert policy(usual)["definition"].items() >= LIMITS.items()
    assert [one.message for one in caplog.records] == ["the limits of queues are set"] * 2


def test_limits_of_another_version_are_replaced(usual: EmbeddedRabbitMQ) -> None:
    older = queue_policy(["medium"], VHOST) | {"definition": {"max-length": 5}}
    assert api_of(usual).keep_policy(older) < 300
    LimitKeeper(url(usual)).run_once(0.0)
    assert policy(usual) == wanted(usual)


@pytest.mark.parametrize("user", ["guest", "keeper:wrong"])
def test_a_user_who_may_not_is_told_once(
    usual: EmbeddedRabbitMQ, user: str, caplog: pytest.LogCaptureFixture
) -> None:
    if user == "guest":  # who knows its password, and may not
        user = usual.url().removeprefix("amqp://").partition("@")[0]
    keeper = LimitKeeper(url(usual, user))
    for hour in range(3):
        keeper.run_once(hour * REFUSED_SECONDS)
    [told] = caplog.records
    assert "may not be set, an operator may set them: docs/scaling.md" in told.message
    assert user.partition(":")[2] not in told.message.replace("guest", "")


def test_a_node_that_is_away_is_told_once_and_the_next_one_asked(
    usual: EmbeddedRabbitMQ,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    away = free_port()
    monkeypatch.setitem(PORTS, away, free_port())
    forget(usual)
    keeper = LimitKeeper(url(usual, "keeper:s%3Acret%40%2F", f"127.0.0.1:{away}"))
    keeper.run_once(0.0)
    [told] = caplog.records
    assert "cannot be set yet" in told.message
    keeper.run_once(0.0)
    assert policy(usual) == wanted(usual)


@pytest.mark.parametrize(
    "broker", ["amqp://guest:guest@127.0.0.1:40001//", "filesystem:///tmp/queues"]
)
def test_nobody_is_asked_beside_a_broker_at_another_port(
    broker: str, caplog: pytest.LogCaptureFixture
) -> None:
    keeper = LimitKeeper(broker)
    assert keeper._nodes == [] and keeper.run_once(0.0) == 0
    assert not caplog.records


def test_a_frozen_node_costs_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        monkeypatch.setitem(PORTS, 5672, silent.getsockname()[1])
        keeper, begun = LimitKeeper("amqp://127.0.0.1//"), time.monotonic()
        keeper.run_once(0.0)
        assert time.monotonic() - begun < 3


def test_a_scheduler_sets_them(
    usual: EmbeddedRabbitMQ, database: DatabaseFixture, tmp_path: Path
) -> None:
    forget(usual)
    database.leader.resign()
    env = {
        "FAIRLINE_DATABASE_URL": database.engine.url.render_as_string(hide_password=False),
        "FAIRLINE_BROKER_URL": url(usual),
        "PYTHONPATH": ".",
    }
    program = SCHEDULER.format(**usual.ports)
    with command((sys.executable, "-c", program), env, tmp_path / "scheduler.log"):
        wait_for(lambda: policy(usual) != {}, 30)
    assert policy(usual) == wanted(usual), json.dumps(policy(usual))
