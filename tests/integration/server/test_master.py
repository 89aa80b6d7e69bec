"""The master of the API processes: it imports the application once, forks, and replaces."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.support.api_server import ApiServer, serving
from tests.support.waiting import wait_for

#: No database is needed for it.
NOWHERE = "postgresql+psycopg2://nobody@127.0.0.1:1/nowhere"
#: Of a worker's memory, what is its own. Without sharing it is all but the libraries.
MOST_OWN = 0.5


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ApiServer]:
    home: Path = tmp_path_factory.mktemp("api")
    with serving(NOWHERE, home) as server:
        yield server


def test_workers_share_the_memory_of_their_code(api: ApiServer) -> None:
    for _ in range(10):
        assert api.get("/healthz").status == 200
    for worker in api.workers():
        memory = worker.memory_full_info()
        assert memory.uss < MOST_OWN * memory.rss, memory


def test_a_worker_that_dies_is_replaced_by_one_that_answers(api: ApiServer) -> None:
    before = {worker.pid for worker in api.workers()}
    for pid in before:
        os.kill(pid, signal.SIGKILL)

    def replaced() -> bool:
        return len({worker.pid for worker in api.workers()} - before) == len(before)

    wait_for(replaced, 60)
    wait_for(lambda: answers(api), 60)


def test_the_master_ends_when_asked_to(api: ApiServer) -> None:
    api.child.send(signal.SIGTERM)
    wait_for(lambda: api.child.poll() is not None, 60)
    assert api.child.poll() == 0
    assert not [child for child in psutil.Process().children() if child.pid == api.child.pid]


def answers(api: ApiServer) -> bool:
    try:
        return api.get("/healthz").status == 200
    except OSError:
        return False
