"""Job types for trying things out and for measuring: echo, sleep, count, fail, crash."""

from __future__ import annotations

import os
import signal
import time
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tasks.context import JobContext
from tasks.errors import DependencyFailure, Permanent, Poison, ResourceViolation, TimeLimit
from tasks.registry import job_type


@job_type("echo", pool="short", timeout=10)
def echo(ctx: JobContext, payload: Any) -> Any:
    """Returns its payload."""
    return payload


@job_type("sleep", pool="medium", timeout=300)
def sleep(ctx: JobContext, payload: Any) -> Any:
    """Waits ``seconds``."""
    try:
        seconds = float(payload["seconds"])
    except (TypeError, KeyError, ValueError):
        raise Permanent('sleep takes {"seconds": number}.') from None
    time.sleep(max(0.0, seconds))
    return {"slept": seconds}


class CountPayload(BaseModel):
    """How far, how fast, and how large the checkpoints are."""

    model_config = ConfigDict(extra="forbid")

    to: int = Field(10, ge=0, le=1_000_000)
    seconds_each: float = Field(1.0, ge=0, le=3600)
    #: Bytes that each checkpoint carries besides the count.
    ballast_bytes: int = Field(0, ge=0, le=64 * 1_048_576)


@job_type("count", pool="long", timeout=3600, schema=CountPayload)
def count(ctx: JobContext, wanted: CountPayload) -> dict[str, object]:
    """Counts to ``to``, with a checkpoint per step."""
    kept = ctx.load_checkpoint() or {"steps": [], "runs": []}
    #: Each step with the attempt that took it, and the step that each run began with.
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


class FailPayload(BaseModel):
    """How to fail."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)

    failure_class: Literal[
        "APP_ERROR", "TIMEOUT", "DEPENDENCY", "POISON", "RESOURCE_VIOLATION", "PERMANENT"
    ] = Field("APP_ERROR", alias="class")
    #: Runs that fail before one succeeds; all of them if omitted.
    times: int | None = Field(None, ge=0)
    #: The wait that a DEPENDENCY failure asks for.
    retry_after: float | None = Field(None, ge=0)
    #: The error's message.
    message: str = Field("", max_length=1_000)


@job_type("fail", pool="short", timeout=10, schema=FailPayload)
def fail(ctx: JobContext, wanted: FailPayload) -> object:
    """Fails ``times`` times with the failure class ``class``, then succeeds."""
    failed = ctx.load_checkpoint() or 0
    if wanted.times is not None and failed >= wanted.times:
        return {"failed": failed}
    ctx.checkpoint(failed + 1)
    message = wanted.message or f"Failing as asked, run {failed + 1}."
    if wanted.failure_class == "DEPENDENCY":
        raise DependencyFailure("nowhere", message, retry_after=wanted.retry_after)
    errors: dict[str, type[BaseException]] = {
        "TIMEOUT": TimeLimit,
        "POISON": Poison,
        "RESOURCE_VIOLATION": ResourceViolation,
        "PERMANENT": Permanent,
    }
    raise errors.get(wanted.failure_class, RuntimeError)(message)


@job_type("crash", pool="short", timeout=10)
def crash(ctx: JobContext, payload: Any) -> Any:
    """Kills the process that runs it."""
    ctx.log.warning("killing my worker, as asked")
    os.kill(os.getpid(), signal.SIGKILL)
