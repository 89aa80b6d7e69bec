"""A RabbitMQ cluster on this machine: three private nodes with ports of their own."""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import cached_property
from pathlib import Path

from app.broker.queue_limits import queue_policy
from app.stack.rabbitmq import EmbeddedRabbitMQ, find_server
from app.stack.services import Running
from app.stack.spawn import spawn
from app.stack.spec import ProcessSpec
from models.pools import POOLS
from tests.support.waiting import wait_for

NODES = 3
START_SECONDS = 180.0


class ClusterNode(EmbeddedRabbitMQ):
    """One of the nodes; the first one has the port mapper that all of them use."""

    alone = ""

    def __init__(self, home: Path, number: int, cookie: str) -> None:
        super().__init__(home / f"node-{number}")
        self.name = f"rabbitmq-{number}"
        self._number = number
        self._cookie = cookie
        self._all = home

    @cached_property
    def mapper(self) -> EmbeddedRabbitMQ:
        return EmbeddedRabbitMQ(self._all / "node-1")

    def node(self, number: int) -> str:
        return f"node-{number}-{self.mapper.home.stack_id()}@localhost"

    def prepare(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        # Users are the cluster's: their passwords are the same on every node.
        (self.folder / "amqp.password").write_text(self._cookie)
        super().prepare()
        cookie = self.folder / ".erlang.cookie"
        if not cookie.exists():
            cookie.write_text(self._cookie)
            cookie.chmod(0o400)
        nodes = "".join(
            f"cluster_formation.classic_config.nodes.{number} = {self.node(number)}\n"
            for number in range(1, NODES + 1)
        )
        with (self.folder / "rabbitmq.conf").open("a") as file:
            file.write(f"cluster_formation.peer_discovery_backend = classic_config\n{nodes}")

    def processes(self) -> Sequence[ProcessSpec]:
        return super().processes()[1:]

    def environment(self) -> dict[str, str]:
        mapper = {"ERL_EPMD_PORT": str(self.mapper.ports["epmd"])}
        return {**super().environment(), **mapper, "RABBITMQ_NODENAME": self.node(self._number)}

    def evaluate(self, expression: str) -> str:
        """What the node answers to an expression in Erlang."""
        return evaluate(self, expression)


def evaluate(service: EmbeddedRabbitMQ, expression: str) -> str:
    """What a node answers to an expression in Erlang."""
    server, env = find_server(), service.environment()
    assert server is not None
    kept = ("HOME", "ERL_EPMD_PORT", "ERL_EPMD_ADDRESS", "ERL_ZFLAGS")
    argv = (str(server.with_name("rabbitmqctl")), "-n", env["RABBITMQ_NODENAME"], "eval")
    done = subprocess.run(
        (*argv, expression),
        env={**os.environ, **{name: env[name] for name in kept}},
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout.strip() or done.stderr


def url_of(nodes: Sequence[Running[ClusterNode]]) -> str:
    """Names all of them."""
    addresses = ",".join(f"127.0.0.1:{node.service.ports['amqp']}" for node in nodes)
    return with_address(nodes[0].service, addresses)


def with_address(service: EmbeddedRabbitMQ, address: str) -> str:
    """The URL of a node, by another address."""
    return f"{service.url().rpartition('@')[0]}@{address}//"


def wait_formed(node: Running[ClusterNode], seconds: float = 60.0) -> None:
    """Until all nodes are members of the cluster, and running."""
    deadline = time.monotonic() + seconds
    running = "length(rabbit_nodes:list_running()) == 3."
    older = "length(rabbit_nodes:all_running()) == 3."  # before RabbitMQ 3.11
    while "true" not in (node.service.evaluate(running), node.service.evaluate(older)):
        assert time.monotonic() < deadline, node.service.evaluate(older)
        time.sleep(0.5)


@contextmanager
def cluster(home: Path) -> Iterator[list[Running[ClusterNode]]]:
    """The nodes, all of them members."""
    cookie = secrets.token_hex(16)
    services = [ClusterNode(home, number, cookie) for number in range(1, NODES + 1)]
    for service in services:
        service.prepare()
    nodes = [Running(service, home / "logs") for service in services]
    with ExitStack() as stack:
        mapper = Running(_PortMapper(services[0]), home / "logs")
        stack.callback(mapper.stop)
        mapper.start()
        for node in nodes:  # together: each waits for the others
            stack.callback(node.stop)
            [spec] = node.service.processes()
            node.children.append(spawn(spec, os.environ, node.log(spec)))
        wait_for(lambda: all(node.service.is_ready() for node in nodes), START_SECONDS)
        wait_formed(nodes[0])
        keep_limits(services[0])
        yield nodes


def keep_limits(node: ClusterNode) -> None:
    """As the scheduler does where RabbitMQ has its usual ports: limits for its very version."""
    version = json.loads(node.evaluate("list_to_binary(rabbit_misc:version()).").strip("<>"))
    policy = queue_policy(POOLS, version=version)
    pattern = policy["pattern"].replace("\\", "\\\\")
    definition = json.dumps(policy["definition"]).replace('"', '\\"')
    done = node.evaluate(
        f'rabbit_policy:parse_set(<<"/">>, <<"{policy["name"]}">>, <<"{pattern}">>, '
        f'<<"{definition}">>, <<"0">>, <<"{policy["apply-to"]}">>, <<"tests">>).'
    )
    assert done == "ok", done


class _PortMapper:
    name = "epmd"

    def __init__(self, node: ClusterNode) -> None:
        self._node = node

    def prepare(self) -> None:
        pass

    def processes(self) -> Sequence[ProcessSpec]:
        return EmbeddedRabbitMQ.processes(self._node)[:1]

    def is_ready(self) -> bool:
        return True
