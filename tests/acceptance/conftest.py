"""Stacks that tests share; each test finds its stack ready.

A stack is stopped when the last of its tests has ended: all tests after them would share the
machine with it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from app.stack.rabbitmq import NOT_INSTALLED, find_server
from loadtest.chaos.facts import COUNT_LIVE
from loadtest.chaos.stack import MEDIUM_ONLY, Stack, embedded_stack
from tests.acceptance.client import Client, client_of, scale
from tests.acceptance.guide import write_modules
from tests.support.fake_s3 import ENVIRONMENT, FakeS3


def need_rabbitmq() -> None:
    """A missing broker is a skip at home and a failure in CI."""
    if find_server() is None:
        if os.environ.get("CI"):
            pytest.fail(NOT_INSTALLED)
        pytest.skip(NOT_INSTALLED)


@pytest.fixture(scope="package")
def shared_stack() -> Iterator[Stack]:
    need_rabbitmq()
    with embedded_stack(**MEDIUM_ONLY, BROKER="rabbitmq", WORKERS_MEDIUM="2") as stack:
        yield stack


@pytest.fixture(scope="package")
def platform_stack(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stack]:
    """All pools, leases that run out soon, large things in S3, and other people's job types."""
    need_rabbitmq()
    folder = tmp_path_factory.mktemp("modules")
    write_modules(folder)
    pools = {
        "short": {"lease_seconds": 3},
        "long": {"lease_seconds": 60},
        "gpu": {"lease_seconds": 30, "slots": 1, "tries": 2, "concurrency": "prefork"},
    }
    with (
        FakeS3() as blobs,
        embedded_stack(
            **ENVIRONMENT,
            BROKER="rabbitmq",
            WORKERS_SHORT="2",
            FAIRLINE_POOLS=json.dumps(pools),
            FAIRLINE_JOB_MODULES="myjobs,tests.acceptance.odd_jobs",
            FAIRLINE_BLOB_URL=blobs.url("blobs"),
            PYTHONPATH=str(folder),
        ) as stack,
    ):
        yield stack


@pytest.fixture
def platform(platform_stack: Stack) -> Iterator[Client]:
    """A client of the stack with all pools."""
    platform_stack.wait_ready()
    with client_of(platform_stack) as client:
        yield client


@pytest.fixture
def calm_client(shared_stack: Stack) -> Iterator[Client]:
    """A client of the shared stack, which has nothing to do, and whatever workers are left."""
    with client_of(shared_stack) as client:
        wait_calm(client)
        yield client


@pytest.fixture
def client(shared_stack: Stack) -> Iterator[Client]:
    """A client of the shared stack, which has its two workers and nothing to do."""
    scale(shared_stack, "worker-medium", 2)
    scale(shared_stack, "scheduler", 1)
    shared_stack.wait_ready()
    with client_of(shared_stack) as client:
        wait_calm(client)
        shared_stack.wait(lambda: workers_are_settled(client), "two workers and no other", 60)
        yield client


def wait_calm(client: Client) -> None:
    """Wait until nothing is left of the test before."""
    client.stack.wait(lambda: client.rows(COUNT_LIVE)[0][0] == 0, "the jobs of the test before", 60)


def workers_are_settled(client: Client) -> bool:
    """Whether exactly two workers run, both of which take work; none is still on its way out."""
    rows = client.rows(
        "SELECT name FROM processes WHERE kind = 'worker' AND NOT draining"
        " AND heartbeat_at > now() - interval '5 seconds'"
    )
    pids = {pid for name, pid in client.stack.pids().items() if name.startswith("worker-")}
    return len(pids) == 2 and {int(row.name.rpartition(":")[2]) for row in rows} >= pids
