"""The watchdog's clock: who waits for a processor owes nobody for that."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tasks.process import FairClock, starved_seconds, system_thread


def test_time_in_line_for_a_processor_does_not_count() -> None:
    clock = FairClock(0.5, now=100.0, starved=7.0)
    assert clock.elapsed(100.25, 7.0) == pytest.approx(0.25)
    assert clock.elapsed(100.50, 7.2) == pytest.approx(0.05)


def test_a_wait_that_is_told_late_is_paid_back() -> None:
    clock = FairClock(0.5, now=100.0, starved=0.0)
    told = [(100.25, 0.0), (100.5, 0.0), (100.75, 0.7), (101.0, 0.7), (101.25, 0.7)]
    counted = [clock.elapsed(now, starved) for now, starved in told]
    assert counted == pytest.approx([0.25, 0.25, 0.0, 0.0, 0.05])


def test_a_pause_of_the_watchdog_does_not_count() -> None:
    clock = FairClock(0.5, now=100.0, starved=0.0)
    assert clock.elapsed(160.0, 0.0) == 0.5
    assert clock.elapsed(160.25, 0.0) == pytest.approx(0.25)


def test_a_system_that_does_not_tell_costs_nothing() -> None:
    assert starved_seconds(0) == 0.0


RIVALS = """
import os, signal, time
from tasks.process import starved_seconds, system_thread
os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
rival = os.fork()
if not rival:
    time.sleep(0.1)
    while os.getppid() != 1:
        pass
began, used, before = time.monotonic(), time.process_time(), starved_seconds(system_thread())
while starved_seconds(system_thread()) - before < 0.2 and time.monotonic() - began < 20:
    pass
print(starved_seconds(system_thread()) - before)
print((time.monotonic() - began) - (time.process_time() - used))
os.kill(rival, signal.SIGKILL)
"""


@pytest.mark.skipif(not starved_seconds(system_thread()), reason="the system does not tell")
def test_a_thread_that_shares_its_processor_is_starved_while_it_does_not_run() -> None:
    done = subprocess.run(
        [sys.executable, "-c", RIVALS], capture_output=True, text=True, check=True, timeout=30
    )
    starved, not_run = map(float, done.stdout.split())
    # A virtual machine may stand still besides, which no thread of it notices.
    assert 0.2 <= starved <= 1.1 * not_run
