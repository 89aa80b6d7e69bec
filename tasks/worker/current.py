"""The job that runs in this thread or greenlet, for log lines."""

from __future__ import annotations

from contextvars import ContextVar

from models.jobs.claim import Claim

#: Set while a slot is at work on a claim. Greenlets have contexts of their own, as threads do.
current_claim: ContextVar[Claim | None] = ContextVar("fairline_claim", default=None)
