"""The baseline with the jobs that its peers are measured with, one and many in a request.

``celery -A loadtest.baselines.plain_celery.batch worker`` and ``gunicorn
'loadtest.baselines.plain_celery.batch:create_app()'``. Many jobs are one multi-row INSERT with one
commit and a Celery group, which sends them over one connection, each with the broker's confirm.
``PEER_ACKS=early`` is Celery's own default: a message is acknowledged before its task runs.
"""

from __future__ import annotations

import os
import time
import uuid
from typing import Any

from celery import group
from flask import Flask, Response, jsonify, request
from sqlalchemy import func, insert, update

from loadtest.baselines import witness
from loadtest.baselines.plain_celery import web
from loadtest.baselines.plain_celery.store import applications
from loadtest.baselines.plain_celery.tasks import celery, engine

celery.conf.task_acks_late = os.environ.get("PEER_ACKS") != "early"


def settle(job_id: str) -> None:
    """Write that it ended."""
    with engine.begin() as connection:
        connection.execute(
            update(applications)
            .where(applications.c.id == uuid.UUID(job_id))
            .values(status="scored", finished_at=func.clock_timestamp())
        )


@celery.task(name="peer.noop")  # type: ignore[untyped-decorator]  # Celery has no types
def noop(job_id: str, payload: dict[str, Any]) -> None:
    """Nothing to do but to say so."""
    settle(job_id)


@celery.task(name="peer.nap")  # type: ignore[untyped-decorator]  # see above
def nap(job_id: str, payload: dict[str, Any]) -> None:
    """Takes so many milliseconds."""
    time.sleep(payload["ms"] / 1000)
    settle(job_id)


@celery.task(name="peer.mark")  # type: ignore[untyped-decorator]  # see above
def mark(job_id: str, payload: dict[str, Any]) -> None:
    """Tells when it began and ended."""
    witness.run(payload)
    settle(job_id)


TASKS = {task.name: task for task in (noop, nap, mark)}


def create_app() -> Flask:
    """The baseline's own routes, and jobs."""
    app = web.create_app()

    @app.post("/jobs")
    def submit_job() -> tuple[Response, int]:
        job = request.get_json()
        job_id = uuid.uuid4()
        with engine.begin() as connection:
            connection.execute(insert(applications).values(**row(job_id, job)))
        TASKS[job["type"]].delay(str(job_id), job["payload"])
        return jsonify(id=str(job_id), status="pending"), 202

    @app.post("/jobs/batch")
    def submit_jobs() -> tuple[Response, int]:
        jobs = [(uuid.uuid4(), job) for job in request.get_json()["jobs"]]
        with engine.begin() as connection:
            connection.execute(insert(applications), [row(*each) for each in jobs])
        group(TASKS[job["type"]].s(str(job_id), job["payload"]) for job_id, job in jobs).delay()
        return jsonify(ids=[str(job_id) for job_id, _ in jobs]), 202

    return app


def row(job_id: uuid.UUID, job: dict[str, Any]) -> dict[str, Any]:
    """A job as the baseline's table holds it."""
    return {"id": job_id, "candidate": "x", "role": job["type"], "payload": job["payload"]}
