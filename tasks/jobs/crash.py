"""``crash``: kills the process that runs it, at once. For trying things out."""

from __future__ import annotations

import os
import signal
from typing import Any

from tasks.context import JobContext
from tasks.registry import job_type


@job_type("crash", pool="short", timeout=10)
def crash(ctx: JobContext, payload: Any) -> Any:
    ctx.log.warning("killing my worker, as asked")
    os.kill(os.getpid(), signal.SIGKILL)
