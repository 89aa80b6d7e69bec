"""A supervisor of small real processes."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from app.stack.home import Home
from app.stack.leftovers import STACK_VARIABLE
from app.stack.supervisor import Supervisor

SLEEP = (sys.executable, "-c", "import time; time.sleep(600)")


@pytest.fixture
def supervisor(tmp_path: Path) -> Iterator[Supervisor]:
    home = Home(tmp_path)
    home.prepare()
    one = Supervisor(home, {**os.environ, STACK_VARIABLE: home.stack_id()})
    yield one
    one.stop_requests = 0
    one.stop_all()


def pids(supervisor: Supervisor) -> list[int]:
    return [slot.child.pid for slot in supervisor.slots if slot.child]


def wait(supervisor: Supervisor, until: Callable[[], bool], seconds: float = 30.0) -> float:
    started = time.monotonic()
    assert supervisor.wait(until, seconds)
    return time.monotonic() - started
