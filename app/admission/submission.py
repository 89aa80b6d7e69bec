"""A submission: a validated request on its way to becoming a row."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime


@dataclass(frozen=True, slots=True)
class Submission:
    """What becomes a job, and an application if it names a candidate."""

    id: str
    tenant_id: int
    type: str
    pool: str
    #: JSON text.
    payload: str
    priority: int = 0
    execute_at: datetime | None = None
    not_after: datetime | None = None
    traceparent: str | None = None
    candidate: str | None = None
    role: str | None = None
