"""``sleep``: waits ``seconds``. For trying things out and for measuring."""

from __future__ import annotations

import time
from typing import Any

from tasks.context import JobContext
from tasks.errors import Permanent
from tasks.registry import job_type


@job_type("sleep", pool="medium", timeout=300)
def sleep(ctx: JobContext, payload: Any) -> Any:
    try:
        seconds = float(payload["seconds"])
    except (TypeError, KeyError, ValueError):
        raise Permanent('sleep takes {"seconds": number}.') from None
    time.sleep(max(0.0, seconds))
    return {"slept": seconds}
