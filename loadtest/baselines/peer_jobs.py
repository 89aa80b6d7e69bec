"""The jobs that every library is compared with, as Fairline's job types (``FAIRLINE_JOB_MODULES``).

Not in the experiment's own package: importing that would load the whole lab into the processes
whose memory is measured.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from loadtest.baselines import witness
from tasks.context import JobContext
from tasks.registry import job_type


def register(name: str, work: Callable[[dict[str, Any]], None], pool: str = "short") -> None:
    @job_type(name, pool=pool, timeout=10)
    def run(ctx: JobContext, payload: dict[str, Any]) -> None:
        work(payload)


for name, work in witness.WORK.items():
    register(name, work)
# Types are measured, so every length has one: ``peer.wait.50`` takes 50 ms.
for length in witness.LENGTHS_MS:
    register(f"peer.wait.{length}", witness.WORK["peer.nap"], "medium")


@job_type("peer.wait", pool="medium", timeout=30)
def wait(ctx: JobContext, payload: dict[str, Any]) -> None:
    """Keeps a slot of the medium pool busy, so that a queue forms behind it."""
    time.sleep(payload["ms"] / 1000)
