"""A job type for the experiments: waits a moment in the short pool."""

from __future__ import annotations

import time
from typing import Any

from tasks.registry import job_type
from tasks.runtime.context import JobContext


@job_type("nap", pool="short", timeout=60)
def nap(ctx: JobContext, payload: dict[str, Any]) -> None:
    time.sleep(float(payload["seconds"]))
