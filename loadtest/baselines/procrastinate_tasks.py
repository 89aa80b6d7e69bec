"""Procrastinate's tasks: ``procrastinate --app=loadtest.baselines.procrastinate_tasks.app worker``.

Coroutines, as its guide asks for when a worker runs many at once. Jobs of a killed worker stay
``doing`` for ever by default; ``PEER_RETRY_STALLED=1`` adds the periodic task that its guide
recommends against that, with shorter times than the guide's ten minutes.
"""

from __future__ import annotations

import asyncio
import os
from typing import Any

from procrastinate import App, JobContext, PsycopgConnector

from loadtest.baselines import witness

#: Most connections of a process, as in the plain Celery baseline; opened as they are needed.
POOL_SIZE = int(os.environ.get("PEER_POOL_SIZE", "20"))
HEARTBEAT_SECONDS = 1.0
STALLED_SECONDS = 4.0

retry_stalled = os.environ.get("PEER_RETRY_STALLED") == "1"

app = App(
    connector=PsycopgConnector(conninfo=os.environ["PEER_DATABASE_URL"], max_size=POOL_SIZE),
    worker_defaults={
        "update_heartbeat_interval": HEARTBEAT_SECONDS,
        "stalled_worker_timeout": STALLED_SECONDS,
    }
    if retry_stalled
    else {},
)


@app.task(name="peer.noop")
async def noop(payload: dict[str, Any]) -> None:
    """Does nothing: the row says that it ended."""


@app.task(name="peer.nap")
async def nap(payload: dict[str, Any]) -> None:
    """Takes so many milliseconds."""
    await asyncio.sleep(payload["ms"] / 1000)


@app.task(name="peer.mark")
async def mark(payload: dict[str, Any]) -> None:
    """Logs when it began and ended."""
    witness.log("start", int(payload["n"]))
    await asyncio.sleep(payload.get("ms", 0) / 1000)
    witness.log("end", int(payload["n"]))


if retry_stalled:

    @app.periodic(cron="* * * * * */2")
    @app.task(queueing_lock="retry_stalled", pass_context=True)
    async def retry_stalled_jobs(context: JobContext, timestamp: int) -> None:
        """Queue the jobs whose worker is silent again."""
        manager = context.app.job_manager
        for job in await manager.get_stalled_jobs(seconds_since_heartbeat=STALLED_SECONDS):
            await manager.retry_job(job)


TASKS = {task.name: task for task in (noop, nap, mark)}
