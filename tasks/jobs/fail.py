"""``fail``: fails as it is asked to, ``times`` times, then succeeds. For trying things out."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.context import JobContext
from tasks.errors import DependencyFailure, Permanent, Poison, ResourceViolation, TimeLimit
from tasks.registry import job_type


class FailPayload(BaseModel):
    """How to fail."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    failure_class: Literal[
        "APP_ERROR", "TIMEOUT", "DEPENDENCY", "POISON", "RESOURCE_VIOLATION", "PERMANENT"
    ] = Field("APP_ERROR", alias="class")
    #: Runs that fail before one succeeds; none given: all of them.
    times: int | None = Field(None, ge=0)
    #: What a DEPENDENCY failure asks to wait.
    retry_after: float | None = Field(None, ge=0)
    #: What the error says; none given: that it was asked for.
    message: str = Field("", max_length=1_000)


@job_type("fail", pool="short", timeout=10, schema=FailPayload)
def fail(ctx: JobContext, wanted: FailPayload) -> object:
    failed = ctx.load_checkpoint() or 0
    if wanted.times is not None and failed >= wanted.times:
        return {"failed": failed}
    ctx.checkpoint(failed + 1)
    message = wanted.message or f"Failing as asked, run {failed + 1}."
    match wanted.failure_class:
        case "TIMEOUT":
            raise TimeLimit(message)
        case "DEPENDENCY":
            raise DependencyFailure("nowhere", message, retry_after=wanted.retry_after)
        case "POISON":
            raise Poison(message)
        case "RESOURCE_VIOLATION":
            raise ResourceViolation(message)
        case "PERMANENT":
            raise Permanent(message)
        case _:
            raise RuntimeError(message)
