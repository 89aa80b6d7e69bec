"""The claim that runs here: in this thread, or in this greenlet."""

from __future__ import annotations

from contextvars import ContextVar

from tasks.runtime.claim import Claim

#: Set while a slot is at work on a claim. Greenlets have contexts of their own, as threads do.
current_claim: ContextVar[Claim | None] = ContextVar("fairline_claim", default=None)
