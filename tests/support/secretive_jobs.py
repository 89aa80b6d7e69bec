"""Job types that repeat what they were given wherever a job can."""

from __future__ import annotations

from typing import Any

from tasks.context import JobContext
from tasks.errors import Permanent
from tasks.registry import job_type


@job_type("repeat", pool="medium", timeout=20, backoff=(0.1,))
def repeat(ctx: JobContext, payload: Any) -> Any:
    """Logs and checkpoints its payload, fails with it once, then returns it."""
    ctx.log.warning("given: %s", payload)
    saved = ctx.load_checkpoint()
    if saved is None:
        ctx.checkpoint(payload)
        raise ValueError(f"failed on {payload}")
    return {"payload": payload, "saved": saved}


@job_type("refuse", pool="medium", timeout=20)
def refuse(ctx: JobContext, payload: Any) -> Any:
    """Is a dead letter at once, with its payload in the error."""
    raise Permanent(f"refused: {payload}")
