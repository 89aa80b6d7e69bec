"""Job types that are cancelled while they run, and note in a file what they saw of it."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tasks.context import JobContext
from tasks.errors import Stop
from tasks.registry import job_type


@job_type("clean_up", pool="medium", timeout=300)
@job_type("long_clean_up", pool="long", timeout=300)
def clean_up(ctx: JobContext, payload: Any) -> str:
    """Notes that it has begun, sleeps, and cleans up for ``seconds``."""
    note = Path(payload["path"])
    try:
        note.write_text("begun")
        time.sleep(120)
    finally:
        time.sleep(payload["seconds"])
        note.write_text("cleaned up")
    return "slept"


@job_type("fail_to_clean_up", pool="medium", timeout=300)
def fail_to_clean_up(ctx: JobContext, payload: Any) -> str:
    try:
        time.sleep(120)
    finally:
        raise RuntimeError("the mess stays")


@job_type("save_often", pool="medium", timeout=300)
def save_often(ctx: JobContext, payload: Any) -> str:
    """Is nearly always waiting for a checkpoint."""
    while True:
        ctx.checkpoint({})


@job_type("catch_everything", pool="medium", timeout=300)
def catch_everything(ctx: JobContext, payload: Any) -> str:
    try:
        time.sleep(120)
    except Stop:
        return "half of it"
    return "slept"


@job_type("look_up", pool="medium", timeout=300, cancel="cooperative")
@job_type("long_look_up", pool="long", timeout=300, cancel="cooperative")
def look_up(ctx: JobContext, payload: Any) -> str:
    """Looks whether it is cancelled once there is a file at ``path``."""
    while not Path(payload["path"]).exists():
        time.sleep(0.1)
    ctx.raise_if_cancelled()
    return "undisturbed"
