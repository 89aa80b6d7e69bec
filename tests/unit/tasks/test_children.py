"""Whose presence a prefork parent keeps: children that live and are late."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator

import billiard
import pytest

from tasks.watchdog.children import RECORD, ChildPresence
from tasks.watchdog.presence_keeper import LATE_SECONDS, is_running
from tests.support.waiting import wait_for


@pytest.fixture
def child() -> Iterator[subprocess.Popen[bytes]]:
    with subprocess.Popen(["sleep", "60"]) as process:
        yield process
        process.kill()


def state_of(pid: int) -> str:
    with open(f"/proc/{pid}/stat") as file:
        return file.read().rpartition(")")[2].split()[0]


def test_process_is_running_unless_it_is_frozen_or_dead(child: subprocess.Popen[bytes]) -> None:
    assert is_running(child.pid, parent=os.getpid())
    assert not is_running(1, parent=os.getpid()), "somebody else's process"
    child.send_signal(signal.SIGSTOP)
    wait_for(lambda: state_of(child.pid) == "T")
    assert not is_running(child.pid)
    child.send_signal(signal.SIGCONT)
    child.kill()
    wait_for(lambda: state_of(child.pid) == "Z")
    assert not is_running(child.pid), "nobody has reaped it yet"
    child.wait()
    assert not is_running(child.pid)


def test_late_children_are_named(child: subprocess.Popen[bytes]) -> None:
    children = ChildPresence(3, "postgresql+psycopg2://")
    for index, (noted, pid) in enumerate([(90.0, child.pid), (99.0, child.pid), (90.0, 1)]):
        record = (noted, pid, f"worker@höst:{index}".encode())
        RECORD.pack_into(children._memory, index * RECORD.size, *record)
    assert children.late(89.0 + LATE_SECONDS) == []
    assert children.late(90.0 + LATE_SECONDS) == ["worker@höst:0"]


def test_child_notes_its_own_report(monkeypatch: pytest.MonkeyPatch) -> None:
    children = ChildPresence(2, "postgresql+psycopg2://")
    process = billiard.current_process()
    monkeypatch.setattr(process, "index", 1, raising=False)
    children.note("me:1")
    noted, pid, name = list(RECORD.iter_unpack(children._memory[:]))[1]
    assert (time.monotonic() - noted < 5, pid > 0, name.rstrip(b"\0")) == (True, True, b"me:1")
    monkeypatch.setattr(process, "index", 2)
    children.note("more children than there were to be")
