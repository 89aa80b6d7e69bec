"""Job types that users would rather not have, for the acceptance tests."""

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
