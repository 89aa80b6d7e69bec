"""A disk that is full for a while, and a process manager that is killed."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.stack.leftovers import find_leftovers
from loadtest.chaos.facts import wait_until_settled
from loadtest.chaos.stack import MEDIUM_ONLY, Stack
from models.store.errors import StateStoreError
from tests.acceptance.client import client_of, new_role
from tests.acceptance.conftest import need_rabbitmq
from tests.support.promises import ClientLog, Submitter, check

pytestmark = pytest.mark.long

#: PostgreSQL, RabbitMQ and some of the write-ahead log.
DISK_MEGABYTES = 512
FULL_SECONDS = 20.0
#: A restart of PostgreSQL may wait for half a minute after so many failures.
RECOVERY_SECONDS = 60.0
END_SECONDS = 20.0


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own; only root may have one."""
    folder = tmp_path / "disk"
    folder.mkdir()
    options = f"size={DISK_MEGABYTES}m,mode=755"
    argv = ("mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder))
    mounted = subprocess.run(argv, check=False, capture_output=True, text=True)
    if mounted.returncode:
        problem = f"no file system can be mounted: {mounted.stderr}"
        if os.environ.get("CI"):
            pytest.fail(problem)
        pytest.skip(problem)
    try:
        yield folder
    finally:
        subprocess.run(("umount", "--lazy", str(folder)), check=True)


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ClientLog]:
    opened = ClientLog(tmp_path / "promises.jsonl")
    yield opened
    opened.close()


@pytest.fixture
def stack(small_disk: Path) -> Iterator[Stack]:
    need_rabbitmq()
    variables = {**MEDIUM_ONLY, "BROKER": "rabbitmq", "WORKERS_MEDIUM": "2", "WORKERS_LONG": "1"}
    variables["FAIRLINE_SERVED_POOLS"] = "medium,long"
    stack = Stack(small_disk / "home", **variables)
    stack.output = small_disk.with_suffix(".out")
    try:
        stack.up()
        yield stack
    finally:
        stack.destroy()


def fill(path: Path) -> None:
    """Take all the room there is, and whatever becomes free meanwhile."""
    with path.open("ab", buffering=0) as ballast:
        for size in (1 << 20, 1 << 12, 1):
            try:
                while ballast.write(b"x" * size):
                    pass
            except OSError:
                continue


def need_room_for_wal(stack: Stack) -> None:
    """Make PostgreSQL begin files for its log: it ends if there is no room for one."""
    with client_of(stack) as client, suppress(StateStoreError):
        for _ in range(5):
            client.rows("SELECT pg_switch_wal(), pg_logical_emit_message(false, '', 'x')")


def test_full_disk_ends_nothing_and_loses_nothing(stack: Stack, log: ClientLog) -> None:
    role, ballast = new_role(), stack.home.path.parent / "ballast"
    assert stack.process
    with Submitter(stack.port, log, role=role).running() as submitter:
        stack.wait(lambda: submitter.accepted > 40, "the first submissions", 30)
        fill(ballast)
        need_room_for_wal(stack)
        deadline = time.monotonic() + FULL_SECONDS
        fill(ballast)
        os.kill(stack.pid("flower"), signal.SIGKILL)  # the process manager has to note another
        while time.monotonic() < deadline:
            fill(ballast)
            time.sleep(0.2)
        assert stack.process.poll() is None, stack.printed()
        assert set(submitter.refusals) <= {503}, submitter.refusals
        ballast.unlink()
        before = submitter.accepted
        stack.wait(lambda: submitter.accepted > before + 40, "submissions", RECOVERY_SECONDS)
        stack.wait_ready(RECOVERY_SECONDS)
    assert stack.process.poll() is None, stack.printed()
    with client_of(stack) as client:
        wait_until_settled(client.engine, 60)
        report = check(log.read(), role, client.engine, stack.port)
        assert report.ok, f"{report}\n{stack.logs()}"
    said = re.findall("cannot note which processes run", stack.printed())
    assert len(said) == 1, stack.printed()


def test_killed_process_manager_takes_everything_with_it(stack: Stack) -> None:
    assert stack.process
    with client_of(stack) as client:
        ids = [client.submit_job("sleep", {"seconds": 50}), client.submit_job("count", {"to": 50})]
        client.wait_running(ids, 2)
    assert len(find_leftovers(stack.home)) > 10
    stack.process.kill()
    stack.process.wait()
    stack.wait(lambda: not find_leftovers(stack.home), "the processes to end", END_SECONDS)
