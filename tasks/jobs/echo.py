"""``echo``: gives its payload back. For trying things out and for measuring."""

from __future__ import annotations

from typing import Any

from tasks.registry import job_type
from tasks.runtime.context import JobContext


@job_type("echo", pool="short", timeout=10)
def echo(ctx: JobContext, payload: Any) -> Any:
    return payload
