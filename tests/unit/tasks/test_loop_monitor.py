"""Who blocks a gevent worker's loop: told by the run itself, not read off names on a stack."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from typing import Any

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

spinning = []

def spin(ctx, payload):
    held = "a local variable of the job, which says nothing"
    spinning.append(True)
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

claims = [hold("nap", 4.0), hold("spin", 2.0), hold("nap", 4.0)]
monitor = LoopMonitor(lambda: claims)
seen = []

def watch():
    while not spinning:
        native_sleep(0.05)
    native_sleep(0.2)
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

#: Raises a Stop on entry to the exit of a run's limits, before they are disarmed.
STRUCK_AT_THE_EXIT = (
    SCRIPT[SCRIPT.index("import json") : SCRIPT.index("def spin")]
    + """
from tasks.worker import limits

def strike(frame, event, arg):
    if frame.f_code is getattr(limits, sys.argv[1]).__exit__.__code__:
        sys.settrace(None)
        raise ResourceViolation("hit")

quick = SimpleNamespace(call=lambda ctx, payload: 1, prepare=None, memory_mb=None, name="quick")
worker = SimpleNamespace(types={"quick": quick}, prepared=PreparedTypes(), blobs=None)
claim = Claim(JobRef("id", 1), 1, "quick", "short", 0, 0, 0, 0, None, datetime.now(UTC), 0, None)
held = Held(claim, 1.0)
held.begin()

def run_and_rest():
    sys.settrace(strike)
    outcome = run(claim, worker, held)
    time.sleep(1.3)  # beyond the time limit of the run, which has ended
    return outcome.message

print(json.dumps([gevent.spawn(run_and_rest).get(), held.interrupt is held.disarm is None]))
"""
)


def output_of(script: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script), *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize(
    ("struck", "ends"),
    [
        (1, ['"slept"', "hit", '"slept"']),
        # Not on top of the stack: the signal leaves the spinning one alone, the hub throws later.
        (0, ["hit", '"spun"', '"slept"']),
    ],
)
def test_only_the_run_that_is_meant_is_hit(struck: int, ends: list[str]) -> None:
    blockers, ended, cleared = output_of(SCRIPT, str(struck))
    assert blockers == [[False, True, False]]
    assert ended == ends
    assert cleared == [True, True, True], "a run that has ended names no frame"


@pytest.mark.parametrize(
    ("limits", "first"),
    [("Green", "from gevent import monkey; monkey.patch_all()\n"), ("Alarm", "")],
)
def test_a_run_that_is_hit_while_its_limits_end_leaves_no_timer_behind(
    limits: str, first: str
) -> None:
    assert output_of(first + STRUCK_AT_THE_EXIT, limits) == ["hit", True]
