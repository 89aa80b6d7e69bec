"""Job types that log what they do to a file, independent of rows and messages.

Named in ``FAIRLINE_JOB_MODULES`` of the stack under test. Each event is one line, appended in one
write, so lines of many processes neither mix nor get lost with their writer.
"""

from __future__ import annotations

import json
import os
import socket
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.context import JobContext
from tasks.registry import job_type

#: The variable that names the file.
VARIABLE = "FAIRLINE_CHAOS_WITNESS"
#: Seconds by which the clock of this process is wrong: see ``loadtest.chaos.skew``.
SKEW = float(os.environ.get("FAIRLINE_CHAOS_SKEW", "0"))

HOST = socket.gethostname()

What = Literal["start", "loaded", "kept"]


@dataclass(frozen=True, slots=True)
class Line:
    at: float
    pid: int
    job: str
    what: What
    #: Steps in the checkpoint that was loaded or kept.
    step: int = 0
    host: str = ""

    @property
    def process(self) -> str:
        """As the end of a worker's name."""
        return f"@{self.host}:{self.pid}"


def log(ctx: JobContext, what: What, step: int = 0) -> None:
    """Write one line, if a file is named."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    line = Line(time.time() - SKEW, os.getpid(), ctx.job_id, what, step, HOST)
    with open(path, "ab", buffering=0) as file:
        file.write((json.dumps(asdict(line)) + "\n").encode())


def read_lines(path: Path) -> list[Line]:
    """Every line, in the order in which it was written."""
    if not path.exists():
        return []
    return [Line(**json.loads(line)) for line in path.read_text().splitlines()]


@job_type("chaos.mark", pool="medium", timeout=120)
def mark(ctx: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Logs its start, and waits."""
    log(ctx, "start")
    time.sleep(payload["seconds"])
    return {"tag": payload["tag"], "pid": os.getpid()}


@job_type("chaos.steps", pool="long", timeout=600)
def steps(ctx: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Counts with a checkpoint per step, and logs each."""
    log(ctx, "start")
    done = ctx.load_checkpoint() or 0
    log(ctx, "loaded", done)
    while done < payload["to"]:
        ctx.raise_if_cancelled()
        time.sleep(payload["seconds_each"])
        done += 1
        ctx.checkpoint(done)
        log(ctx, "kept", done)
    return {"tag": payload["tag"], "steps": done, "pid": os.getpid()}
