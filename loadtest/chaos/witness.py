"""Job types that tell a file what they do: a witness that neither rows nor messages can bend.

Named in ``FAIRLINE_JOB_MODULES`` of the stack under test. Each act is one line, appended in
one write, so lines of many processes neither mix nor die with whoever wrote them.
"""

from __future__ import annotations

import json
import os
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from tasks.context import JobContext
from tasks.registry import job_type

#: Where the file is.
VARIABLE = "FAIRLINE_CHAOS_WITNESS"

What = Literal["start", "loaded", "kept"]


@dataclass(frozen=True, slots=True)
class Line:
    """Something a run did."""

    at: float
    pid: int
    job: str
    what: What
    #: Steps that the checkpoint held, or now holds.
    step: int = 0


def tell(ctx: JobContext, what: What, step: int = 0) -> None:
    """Write one line, if anybody wants to know."""
    path = os.environ.get(VARIABLE)
    if not path:
        return
    line = Line(time.time(), os.getpid(), ctx.job_id, what, step)
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, (json.dumps(asdict(line)) + "\n").encode())
    finally:
        os.close(file)


def read_lines(path: Path) -> list[Line]:
    """Everything the witness said, in the order in which it happened."""
    if not path.exists():
        return []
    return [Line(**json.loads(line)) for line in path.read_text().splitlines()]


@job_type("chaos.mark", pool="medium", timeout=120)
def mark(ctx: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Tells that it runs, and waits."""
    tell(ctx, "start")
    time.sleep(payload["seconds"])
    return {"tag": payload["tag"], "pid": os.getpid()}


@job_type("chaos.steps", pool="long", timeout=600)
def steps(ctx: JobContext, payload: dict[str, Any]) -> dict[str, Any]:
    """Counts with a checkpoint a step, and tells of each."""
    tell(ctx, "start")
    done = ctx.load_checkpoint() or 0
    tell(ctx, "loaded", done)
    while done < payload["to"]:
        ctx.raise_if_cancelled()
        time.sleep(payload["seconds_each"])
        done += 1
        ctx.checkpoint(done)
        tell(ctx, "kept", done)
    return {"tag": payload["tag"], "steps": done, "pid": os.getpid()}
