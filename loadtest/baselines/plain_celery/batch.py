"""The baseline with the jobs that all libraries are compared with, one or many per request.

Many jobs are one multi-row INSERT with one commit and a Celery group, which sends them over one
connection, each with a publisher confirm. ``PEER_ACKS=early`` is Celery's own default: a message
is acknowledged before its task runs.
"""

from __future__ import annotations

import os
import uuid
from typing import Any

from celery import group
from flask import Flask
from sqlalchemy import func, insert, update

from loadtest.baselines import witness
from loadtest.baselines.plain_celery import web
from loadtest.baselines.plain_celery.store import applications
from loadtest.baselines.plain_celery.tasks import celery, engine
from loadtest.baselines.web import Jobs, add_jobs

celery.conf.task_acks_late = os.environ.get("PEER_ACKS") != "early"


def register(name: str) -> Any:
    """A task that does its work and writes that it ended."""

    @celery.task(name=name)  # type: ignore[untyped-decorator]  # Celery has no types
    def run(job_id: str, payload: dict[str, Any]) -> None:
        witness.WORK[name](payload)
        with engine.begin() as connection:
            connection.execute(
                update(applications)
                .where(applications.c.id == uuid.UUID(job_id))
                .values(status="scored", finished_at=func.clock_timestamp())
            )

    return run


TASKS = {name: register(name) for name in witness.WORK}


def send(jobs: Jobs) -> list[str]:
    rows = [
        {"id": uuid.uuid4(), "candidate": "x", "role": job["type"], "payload": job["payload"]}
        for job in jobs
    ]
    with engine.begin() as connection:
        connection.execute(insert(applications), rows if len(rows) > 1 else rows[0])
    calls = [TASKS[row["role"]].s(str(row["id"]), row["payload"]) for row in rows]
    (group(calls) if len(calls) > 1 else calls[0]).delay()
    return [str(row["id"]) for row in rows]


def create_app() -> Flask:
    return add_jobs(web.create_app(), send)
