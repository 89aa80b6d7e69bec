"""``count``: counts to ``to``, a checkpoint a step. For trying out long jobs."""

from __future__ import annotations

import time

from pydantic import BaseModel, ConfigDict, Field

from tasks.context import JobContext
from tasks.registry import job_type


class CountPayload(BaseModel):
    """How far, how fast, and how much to carry along."""

    model_config = ConfigDict(extra="forbid")

    to: int = Field(10, ge=0, le=1_000_000)
    seconds_each: float = Field(1.0, ge=0, le=3600)
    #: Bytes that each checkpoint carries besides the count.
    ballast_bytes: int = Field(0, ge=0, le=64 * 1_048_576)


@job_type("count", pool="long", timeout=3600, schema=CountPayload)
def count(ctx: JobContext, wanted: CountPayload) -> dict[str, object]:
    kept = ctx.load_checkpoint() or {"steps": [], "runs": []}
    #: Each step with the try that took it, and the step that each run began with.
    steps: list[list[int]] = kept["steps"]
    runs: list[int] = [*kept["runs"], len(steps) + 1]
    ballast = "x" * wanted.ballast_bytes
    while len(steps) < wanted.to:
        ctx.raise_if_cancelled()
        time.sleep(wanted.seconds_each)
        steps.append([len(steps) + 1, ctx.attempt])
        ctx.checkpoint({"steps": steps, "runs": runs, "ballast": ballast})
        ctx.progress(len(steps), wanted.to)
    return {"counted": len(steps), "steps": steps[-1000:], "runs": runs[-1000:]}
