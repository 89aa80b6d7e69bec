"""The small process that keeps a worker's presence: what ends it, and what it costs."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

from models.presence import PRESENCE_LOST_SECONDS, PRESENCE_SECONDS
from tasks.watchdog import presence_keeper
from tasks.watchdog.presence_keeper import LATE_SECONDS, LOOK_SECONDS, PresenceKeeper

#: Modules that would make it as heavy as its worker.
HEAVY = ("sqlalchemy", "gevent", "pydantic", "celery")


@pytest.fixture
def keeper() -> Iterator[PresenceKeeper]:
    keeper = PresenceKeeper("w1", 30.0, "SELECT 1", {})
    keeper.start()
    yield keeper
    keeper.stop()


def wait_for_end(pid: int) -> None:
    gone, _ = psutil.wait_procs([psutil.Process(pid)], 10)
    assert gone


def test_late_is_after_a_missed_report_and_before_silence() -> None:
    assert PRESENCE_SECONDS < LATE_SECONDS
    assert LATE_SECONDS + LOOK_SECONDS <= PRESENCE_LOST_SECONDS - PRESENCE_SECONDS


def test_it_ends_when_its_worker_closes_the_pipe(keeper: PresenceKeeper) -> None:
    process = psutil.Process(keeper._pid)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR2):
        os.kill(process.pid, number)  # as a process manager signals the whole group
    keeper.note_report()
    assert process.status() != psutil.STATUS_ZOMBIE
    keeper.stop()
    wait_for_end(process.pid)


def test_one_that_was_killed_is_replaced_but_not_in_a_loop(
    keeper: PresenceKeeper, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = keeper._pid
    os.kill(first, signal.SIGKILL)
    os.waitid(os.P_PID, first, os.WEXITED | os.WNOWAIT)
    keeper.note_report()
    assert keeper._pid == first, "too soon"
    monkeypatch.setattr(presence_keeper, "RESTART_SECONDS", 0.0)
    keeper.note_report()
    assert keeper._pid != first
    keeper.note_report()
    assert not psutil.pid_exists(first), "its exit status is collected"


def test_worker_does_without_one_that_cannot_be_started(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    keeper = PresenceKeeper("w1", 30.0, "SELECT 1", {})
    keeper._argv[0] = "/nowhere/python"
    keeper.start()
    keeper.note_report()
    keeper.stop()
    keeper.note_report()
    assert capfd.readouterr().err.count("/nowhere") == 1


def test_its_imports_are_few_even_when_it_reports() -> None:
    code = (
        "import sys; from tasks.watchdog import presence_keeper as keeper;"
        "keeper.report_for(['w1'], 'SELECT 1', {'host': '/nowhere', 'dbname': 'none'});"
        "print(*{name.partition('.')[0] for name in sys.modules})"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    names = ran.stdout.split()
    assert "psycopg2" in names
    assert not set(names) & set(HEAVY)
    assert not ran.stderr, "a store that is away is no error"
