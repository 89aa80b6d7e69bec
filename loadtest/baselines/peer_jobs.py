"""The jobs that every contender runs, as Fairline's job types.

Named in ``FAIRLINE_JOB_MODULES``. Not in the experiment's own package: importing that would put
the whole lab into the processes that are weighed.
"""

from __future__ import annotations

import time
from typing import Any

from loadtest.baselines import witness
from tasks.context import JobContext
from tasks.registry import job_type


@job_type("peer.noop", pool="short", timeout=10)
def noop(ctx: JobContext, payload: dict[str, Any]) -> None:
    """Nothing to do: the row says that it ended."""


@job_type("peer.nap", pool="short", timeout=10)
def nap(ctx: JobContext, payload: dict[str, Any]) -> None:
    """Takes so many milliseconds."""
    time.sleep(payload["ms"] / 1000)


@job_type("peer.mark", pool="short", timeout=10)
def mark(ctx: JobContext, payload: dict[str, Any]) -> None:
    """Tells when it began and ended."""
    witness.run(payload)


@job_type("peer.wait", pool="medium", timeout=30)
def wait(ctx: JobContext, payload: dict[str, Any]) -> None:
    """Keeps a slot of the medium pool busy, so that a line forms behind it."""
    time.sleep(payload["ms"] / 1000)
