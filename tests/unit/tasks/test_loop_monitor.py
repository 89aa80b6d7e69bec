"""Who blocks a gevent worker's loop: told by the run itself, not read off names on a stack."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap

import pytest

from tests import ROOT

SCRIPT = """
from gevent import monkey; monkey.patch_all()
import json, sys, time
from datetime import datetime, UTC
from types import SimpleNamespace
import gevent
from models.jobs.claim import Claim, JobRef
from tasks.errors import ResourceViolation
from tasks.process import native_sleep, start_native
from tasks.watchdog.loop_monitor import LoopMonitor
from tasks.worker.held import Held
from tasks.worker.outcome import Failed
from tasks.worker.pipeline import run
from tasks.worker.prepare import PreparedTypes

def spin(ctx, payload):
    held = "a local variable of the job, which says nothing"
    end = time.monotonic() + payload
    while time.monotonic() < end: pass
    return "spun"

def nap(ctx, payload):
    time.sleep(payload)
    return "slept"

types = {name: SimpleNamespace(call=act, prepare=None, memory_mb=None, name=name)
         for name, act in (("spin", spin), ("nap", nap))}
worker = SimpleNamespace(types=types, prepared=PreparedTypes(), blobs=None)

def hold(type_, seconds):
    ref = JobRef(type_, 1)
    made = datetime.now(UTC)
    held = Held(Claim(ref, 1, type_, "short", 0, 0, 0, 0, None, made, seconds, None), 60.0)
    held.begin()
    return held

claims = [hold("nap", 4.0), hold("spin", 3.0), hold("nap", 4.0)]
monitor = LoopMonitor(lambda: claims)
seen = []

def watch():
    native_sleep(0.5)
    monitor.look(time.monotonic(), 0.0)
    native_sleep(0.2)
    monitor.look(time.monotonic(), 0.2)
    seen.append([held is monitor.blocker for held in claims])
    monitor.strike(claims[int(sys.argv[1])], ResourceViolation("hit"))

start_native(watch)
runs = [gevent.spawn(run, held.claim, worker, held) for held in claims]
gevent.joinall(runs, raise_error=True)
print(json.dumps([
    seen,
    [one.value.message if isinstance(one.value, Failed) else one.value.result for one in runs],
    [held.frame is None for held in claims],
]))
"""


@pytest.mark.parametrize(
    ("struck", "ends"),
    [
        (1, ['"slept"', "hit", '"slept"']),
        # Not on top of the stack: the signal leaves the spinning one alone, the hub throws later.
        (0, ["hit", '"spun"', '"slept"']),
    ],
)
def test_only_the_run_that_is_meant_is_hit(struck: int, ends: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(SCRIPT), str(struck)],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    blockers, ended, cleared = json.loads(done.stdout)
    assert blockers == [[False, True, False]]
    assert ended == ends
    assert cleared == [True, True, True], "a run that has ended names no frame"
