"""Job types of the acceptance tests: in a pool of their own, and in the wrong one."""

from __future__ import annotations

import time
from typing import Any

from tasks.registry import job_type
from tasks.runtime.context import JobContext


@job_type("slow_in_short", pool="short", timeout=60)
def slow_in_short(ctx: JobContext, payload: Any) -> Any:
    """Takes many leases of the pool it says it is for."""
    time.sleep(payload["seconds"])
    return {"attempt": ctx.attempt, "first": ctx.first_attempt}


@job_type("render", pool="gpu", timeout=60)
def render(ctx: JobContext, payload: Any) -> Any:
    """Needs what only the workers of its own pool have."""
    return {"rendered": payload["frame"]}
