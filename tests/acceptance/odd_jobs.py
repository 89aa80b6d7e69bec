"""Job types of the acceptance tests: in a pool of their own, and in the wrong one."""

from __future__ import annotations

import json
import time
from datetime import UTC, datetime
from typing import Any
from urllib.error import HTTPError
from urllib.request import Request, urlopen

from tasks.context import JobContext
from tasks.errors import QuotaSpent
from tasks.registry import job_type
from tasks.scorers.headers import quota_reading, retry_after_seconds


@job_type("slow_in_short", pool="short", timeout=60)
def slow_in_short(ctx: JobContext, payload: Any) -> Any:
    """Takes many leases of the pool it says it is for."""
    time.sleep(payload["seconds"])
    return {"attempt": ctx.attempt, "first": ctx.first_attempt}


@job_type("render", pool="gpu", timeout=60)
def render(ctx: JobContext, payload: Any) -> Any:
    """Needs what only the workers of its own pool have."""
    return {"rendered": payload["frame"]}


_ready: list[str] = []


@job_type("misplaced", pool="short", timeout=60, prepare=lambda: _ready.append("ready"))
def misplaced(ctx: JobContext, payload: Any) -> Any:
    """Takes longer than its pool is for, and needs its process to be prepared."""
    time.sleep(payload["seconds"])
    return {"prepared": len(_ready)}


@job_type("metered", pool="medium", timeout=60, dependency="metered")
def metered(ctx: JobContext, payload: Any) -> Any:
    """Asks a model that takes so much a minute, and passes on what it says about that."""
    body = {"model": "m", "max_tokens": 9, "messages": [{"role": "user", "content": []}]}
    body["output_config"] = {"format": {"schema": {"type": "number"}}}
    headers = {"x-api-key": payload["key"], "anthropic-version": "2023-06-01"}
    request = Request(f"{payload['url']}/v1/messages", json.dumps(body).encode(), headers)
    now, said = datetime.now(UTC), {}
    try:
        with urlopen(request, timeout=20) as answer:
            said = {name.lower(): value for name, value in answer.headers.items()}
    except HTTPError as error:
        with error:
            said = {name.lower(): value for name, value in error.headers.items()}
        seconds = retry_after_seconds(said, rate_limited=True, now=now)
        raise QuotaSpent("metered", retry_after=seconds) from None
    finally:
        if reading := quota_reading(said, now):
            ctx.report_quota(reading)
    return {"tenant": ctx.tenant_id}
