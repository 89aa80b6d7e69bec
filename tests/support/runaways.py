"""Job types that do what no job should, for tests of what becomes of them.

Loaded by the workers and schedulers of these tests through ``FAIRLINE_JOB_MODULES``.
"""

from __future__ import annotations

import ctypes
import re
import time
from collections import deque
from contextlib import suppress
from itertools import repeat
from typing import Any

from tasks.context import JobContext
from tasks.errors import Stop
from tasks.registry import job_type
from tasks.watchdog import lost_runs

#: So that nobody has to wait for the parent of a prefork child.
lost_runs.MARGIN_SECONDS = 3.0

ONCE = {"TIMEOUT": 1, "RESOURCE_VIOLATION": 1}
SOON = [0.2]


@job_type("nap", pool="short", timeout=30)
@job_type("long_nap", pool="native", timeout=30)
def nap(ctx: JobContext, payload: Any) -> Any:
    time.sleep(payload["seconds"])
    return "rested"


@job_type("leave_trace", pool="short", timeout=30)
def leave_trace(ctx: JobContext, payload: Any) -> Any:
    with open(payload["path"], "a", encoding="utf-8") as file:
        file.write(f"{ctx.job_id}\n")
    return "written"


@job_type("spin", pool="short", timeout=30, backoff=SOON)
@job_type("costly_spin", pool="long", timeout=30, backoff=SOON, cpu_seconds=0.5)
def spin(ctx: JobContext, payload: Any) -> Any:
    while True:
        pass


@job_type("oversleep", pool="short", timeout=0.5, backoff=SOON)
@job_type("long_oversleep", pool="long", timeout=0.5, backoff=SOON)
def oversleep(ctx: JobContext, payload: Any) -> Any:
    time.sleep(60)


@job_type("deaf", pool="short", timeout=0.5, class_tries=ONCE)
@job_type("long_deaf", pool="long", timeout=0.5, class_tries=ONCE)
@job_type("deaf_to_cancelling", pool="long", timeout=60)
def deaf(ctx: JobContext, payload: Any) -> Any:
    """Sleeps on, whatever it is told."""
    while True:
        with suppress(Stop):
            ctx.progress(time.time())
            time.sleep(0.1)


@job_type("deaf_spin", pool="short", timeout=30, class_tries=ONCE)
def deaf_spin(ctx: JobContext, payload: Any) -> Any:
    """Holds its worker, whatever it is told."""
    while True:
        with suppress(Stop):
            spin(ctx, payload)


@job_type("backtrack", pool="long", timeout=0.5, class_tries=ONCE)
def backtrack(ctx: JobContext, payload: Any) -> Any:
    """Years of native code that lets no other thread run, but hears signals."""
    return bool(re.fullmatch(r"(a+)+b", "a" * 64))


@job_type("turn_natively", pool="native", timeout=0.5, class_tries=ONCE)
def turn_natively(ctx: JobContext, payload: Any) -> Any:
    """Native code for ever, which hears nothing at all."""
    deque(repeat(0), maxlen=0)


@job_type("hold_natively", pool="native", timeout=60)
def hold_natively(ctx: JobContext, payload: Any) -> Any:
    """Native code that holds the interpreter lock, and ends."""
    return ctypes.PyDLL(None).sleep(payload["seconds"])


@job_type("hoard", pool="long", timeout=30, memory_mb=64, class_tries=ONCE)
def hoard(ctx: JobContext, payload: Any) -> Any:
    """Takes memory in pieces, without end."""
    pieces = []
    while True:
        pieces.append(bytearray(payload["bytes"]))
        time.sleep(payload.get("pause", 0))


@job_type("stand_still", pool="long", timeout=60, class_tries=ONCE)
def stand_still(ctx: JobContext, payload: Any) -> Any:
    """Says the same again and again, which is no progress."""
    while True:
        ctx.progress(1)
        time.sleep(0.1)


@job_type("report_only", pool="long", timeout=60, class_tries=ONCE)
def report_only(ctx: JobContext, payload: Any) -> Any:
    """Reports progress all the time, and saves nothing."""
    for done in range(600):
        ctx.progress(done, 600)
        time.sleep(0.1)


@job_type("save_now_and_then", pool="long", timeout=60, class_tries=ONCE)
def save_now_and_then(ctx: JobContext, payload: Any) -> Any:
    """Takes longer than its pool allows without a checkpoint, and saves in time."""
    for done in range(payload["steps"]):
        ctx.checkpoint(done)
        time.sleep(1.0)
    return "saved"
