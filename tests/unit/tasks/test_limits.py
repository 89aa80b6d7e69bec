"""The soft limits where they work: on the main thread of a process, and in greenlets.

Each test runs in a process of its own: timers, signals and patches belong to a process.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import textwrap
from typing import Any

from tests import ROOT

SHARED = """
import json, threading, time
from datetime import datetime, UTC
from tasks.errors import Cancelled, Stop
from models.jobs.claim import Claim, JobRef
from tasks.worker.held import Held
from tasks.worker.limits import stoppable

def hold(timeout):
    claim = Claim(JobRef("id", 1), 1, "echo", "long", 0, 0, 0, 0, None, datetime.now(UTC), 0, None)
    held = Held(claim, timeout)
    held.begin()
    return held

def ended_by(act, timeout, memory_mb=None, held=None):
    held = held or hold(timeout)
    began = time.monotonic()
    try:
        with stoppable(held, memory_mb):
            act()
        name = "returned"
    except BaseException as error:
        name = type(error).__name__
    assert held.interrupt is None, "disarmed"
    return name, time.monotonic() - began < 20

def interrupt_soon(held, sleep):
    while held.interrupt is None:
        sleep(0.01)
    sleep(0.1)
    held.interrupt(Cancelled())
"""


def run(script: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_the_main_thread_is_interrupted_at_its_next_bytecode_and_left_as_it_was() -> None:
    seen = run(
        SHARED
        + """
import resource, signal
def spin():
    while True: pass
def take():
    return [bytearray(50_000_000) for _ in range(100)]
def cancel_soon():
    held = hold(60)
    threading.Thread(target=interrupt_soon, args=(held, time.sleep)).start()
    return ended_by(lambda: time.sleep(60), 60, held=held)
def hit_too_late():
    # The Stop was meant for the run before, and its signal comes during this one.
    late = hold(60)
    with stoppable(late):
        interrupt = late.interrupt
    threading.Timer(0.2, lambda: interrupt(Cancelled())).start()
    return ended_by(lambda: time.sleep(0.5), 60)

before = resource.getrlimit(resource.RLIMIT_DATA), signal.getsignal(signal.SIGALRM)
print(json.dumps([
    ended_by(lambda: time.sleep(60), 0.2),
    ended_by(spin, 0.2),
    ended_by(take, 60, memory_mb=64),
    ended_by(lambda: bytearray(10_000_000_000), 60, memory_mb=64),
    cancel_soon(),
    hit_too_late(),
    ended_by(lambda: None, 0.5),
    (time.sleep(0.7), "quiet")[1],
    before == (resource.getrlimit(resource.RLIMIT_DATA), signal.getsignal(signal.SIGALRM)),
]))
"""
    )
    timed_out = ["TimeLimit", True]
    out_of_memory = ["MemoryError", True]
    assert seen == [
        timed_out,
        timed_out,
        out_of_memory,
        out_of_memory,
        ["Cancelled", True],
        ["returned", True],
        ["returned", True],
        "quiet",
        True,
    ]


def test_a_greenlet_is_interrupted_at_its_next_switch_and_its_neighbours_are_not() -> None:
    seen = run(
        "from gevent import monkey; monkey.patch_all()\n"
        + SHARED
        + """
import gevent
from tasks.process import start_native, native_sleep

held, late = hold(60), hold(60)
def ends_in_time():
    with stoppable(late):
        late.interrupt(Cancelled())  # thrown by the hub, which comes too late
    gevent.sleep(0.1)
    return "undisturbed"

start_native(lambda: interrupt_soon(held, native_sleep))
runs = [
    gevent.spawn(ended_by, lambda: time.sleep(60), 0.2),
    gevent.spawn(ended_by, lambda: time.sleep(60), 60, None, held),
    gevent.spawn(ended_by, lambda: time.sleep(0.5), 60),
    gevent.spawn(ends_in_time),
]
gevent.joinall(runs, raise_error=True)
print(json.dumps([one.value for one in runs]))
"""
    )
    assert seen == [
        ["TimeLimit", True],
        ["Cancelled", True],
        ["returned", True],
        "undisturbed",
    ]


def test_native_code_that_lets_nobody_run_is_killed_by_the_system() -> None:
    script = """
import json
from collections import deque
from itertools import repeat
from sqlalchemy import make_url
from types import SimpleNamespace
from tasks.watchdog.watchdog import Watchdog

engine = SimpleNamespace(url=make_url("postgresql+psycopg2://nobody@127.0.0.1:1/none"))
worker = SimpleNamespace(engine=engine, slots=SimpleNamespace(held=lambda: []))
Watchdog(worker, ["short"], 1.0).start()
print("watching", flush=True)
deque(repeat(0), maxlen=0)
"""
    done = subprocess.run(
        [sys.executable, "-c", script],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        env={"FAIRLINE_POOLS": '{"short": {"lease_seconds": 3}}'},
        check=False,
    )
    assert (done.stdout, done.returncode) == ("watching\n", -signal.SIGVTALRM), done.stderr
