"""A RabbitMQ cluster loses its nodes one at a time: jobs go on, and each of them runs once."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from app.stack.services import Running
from models.pools import POOLS
from tests.integration.conftest import (  # noqa: F401 - fixtures
    api_database,
    database,
    postgres,
    services_home,
)
from tests.support.broker_stack import BrokerStack
from tests.support.commands import SCHEDULER, command, worker
from tests.support.database_fixture import DatabaseFixture
from tests.support.rabbitmq_nodes import ClusterNode, cluster, url_of, wait_formed
from tests.support.slow_link import SlowLink

#: RabbitMQ elects another leader within half a second, and clients are back a second later; on a
#: busy machine it takes longer, but nobody waits for a lease, which is a minute.
MOST_GAP_SECONDS = 10.0


@pytest.fixture(scope="module")
def nodes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Running[ClusterNode]]]:
    with cluster(tmp_path_factory.mktemp("nodes")) as formed:
        yield formed


@pytest.fixture
def stack(
    nodes: list[Running[ClusterNode]],
    database: DatabaseFixture,  # noqa: F811 - the fixture
    tmp_path: Path,
) -> Iterator[BrokerStack]:
    env = {
        "FAIRLINE_DATABASE_URL": database.engine.url.render_as_string(hide_password=False),
        "FAIRLINE_BROKER_URL": url_of(nodes),
        "FAIRLINE_QUEUE_TYPE": "quorum",
        "FAIRLINE_POOLS": '{"medium": {"lease_seconds": 60}, "long": {"lease_seconds": 60}}',
        "PYTHONPATH": ".",
    }
    database.leader.resign()
    with ExitStack() as processes, SlowLink("127.0.0.1", nodes[0].service.ports["amqp"]) as link:
        processes.enter_context(command(SCHEDULER, env, tmp_path / "scheduler.log"))
        started = BrokerStack(database, link, tmp_path)
        for pool in ("medium", "long"):
            argv = worker(pool, 2, POOLS[pool].concurrency)
            processes.enter_context(command(argv, env, tmp_path / f"{pool}.log"))
        started.wait_ended([*started.submit(4, 0.1), *started.submit(2, 0.1, "long")], 60)
        yield started


class Load:
    """Jobs that are submitted all the while; the longest time in which none of them ended."""

    def __init__(self, stack: BrokerStack) -> None:
        self._stack = stack
        self._ids: list[str] = []
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        while not self._stop.wait(0.2):
            self._ids += [*self._stack.submit(2, 0.05), *self._stack.submit(1, 0.05, "long")]

    def __enter__(self) -> Load:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def end(self) -> dict[str, float]:
        """Until all have ended, each run once; the longest gap between two ends, by pool."""
        self.__exit__()
        self._stack.wait_ended(self._ids, 60, most_dispatches=5)
        gaps = {}
        rows = self._stack.rows(self._ids)
        for pool in ("medium", "long"):
            ends = sorted(row.finished_at for row in rows if row.pool == pool)
            gaps[pool] = max((later - one).total_seconds() for one, later in pairwise(ends))
        return gaps


def kill(node: Running[ClusterNode]) -> None:
    node.kill()


def drain(node: Running[ClusterNode]) -> None:
    """As ``rabbitmq-upgrade drain`` does, before maintenance: its clients are sent away."""
    assert "ok" in node.service.evaluate("rabbit_maintenance:drain().")
    time.sleep(1)
    node.stop()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("lose", [kill, drain], ids=lambda one: one.__name__)
def test_nodes_are_lost_in_turn_and_every_job_runs_once(
    nodes: list[Running[ClusterNode]], stack: BrokerStack, lose: Callable[..., None]
) -> None:
    for node in nodes:
        with Load(stack) as load:
            time.sleep(2)
            lose(node)
            time.sleep(5)
            gaps = load.end()
        print(f"{lose.__name__} {node.service.name}: {gaps}")
        assert max(gaps.values()) < MOST_GAP_SECONDS
        node.start(120)
        wait_formed(node)
