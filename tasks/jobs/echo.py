"""``echo``: gives its payload back. For trying things out and for measuring."""

from __future__ import annotations

from typing import Any

from tasks.context import JobContext
from tasks.registry import job_type


@job_type("echo", pool="short", timeout=10)
def echo(ctx: JobContext, payload: Any) -> Any:
    return payload
