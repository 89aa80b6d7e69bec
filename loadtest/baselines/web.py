"""HTTP APIs of the other libraries: one job, many jobs, and an empty route as Flask's ceiling.

Dramatiq keeps one connection and channel per thread, here a greenlet, which serves all requests of
a kept-alive connection. Procrastinate is opened once per process with its own connection pool.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

from flask import Flask, Response, jsonify, request

Jobs = list[dict[str, Any]]


def empty_app() -> Flask:
    app = Flask(__name__, static_folder=None)

    @app.get("/empty")
    def empty() -> Response:
        return Response(b'{"status":"ok"}', content_type="application/json")

    return app


def add_jobs(app: Flask, send: Callable[[Jobs], list[Any]]) -> Flask:
    """The app, with routes for jobs; ``send`` queues them and returns their ids."""

    @app.post("/jobs")
    def submit_job() -> tuple[Response, int]:
        return jsonify(id=send([request.get_json()])[0], status="queued"), 202

    @app.post("/jobs/batch")
    def submit_jobs() -> tuple[Response, int]:
        return jsonify(ids=send(request.get_json()["jobs"])), 202

    return app


def dramatiq() -> Flask:
    """A request is a message in a durable queue and nothing else: no row, no state, no result."""
    from loadtest.baselines.dramatiq_tasks import ACTORS

    def send(jobs: Jobs) -> list[str]:
        return [ACTORS[job["type"]].send(job["payload"]).message_id for job in jobs]

    return add_jobs(empty_app(), send)


def procrastinate() -> Flask:
    """A request is a row; workers take rows one by one, and keep them with their outcome."""
    from loadtest.baselines.procrastinate_tasks import TASKS, app

    app.open()

    def send(jobs: Jobs) -> list[int]:
        if len(jobs) == 1:
            return [TASKS[jobs[0]["type"]].defer(payload=jobs[0]["payload"])]
        ids: list[int] = []
        for name, alike in groupby(jobs, key=lambda job: str(job["type"])):
            ids += TASKS[name].batch_defer(*({"payload": job["payload"]} for job in alike))
        return ids

    return add_jobs(empty_app(), send)
