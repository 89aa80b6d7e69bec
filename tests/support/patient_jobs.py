"""A job type that runs for as long as a test wants it to."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tasks.context import JobContext
from tasks.registry import job_type


@job_type("await_file", pool="medium", timeout=60)
def await_file(ctx: JobContext, payload: Any) -> str:
    """Until there is a file at ``path``; a checkpoint a step, at which it could go elsewhere."""
    while not Path(payload["path"]).exists():
        ctx.checkpoint({})
        time.sleep(0.1)
    return "there"
