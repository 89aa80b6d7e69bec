"""The peers' front doors: one job, many jobs, and an empty route as the ceiling of Flask.

``gunicorn 'loadtest.baselines.web:dramatiq()'`` or ``:procrastinate()``. Dramatiq keeps one
connection and channel a thread, here a greenlet; one greenlet serves all requests of a kept-alive
connection, so each is opened once. Procrastinate is opened once a process, synchronously, with a
pool of connections of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from typing import Any

from flask import Flask, Response, jsonify, request

Jobs = list[dict[str, Any]]


def empty_app() -> Flask:
    """A server with the empty route."""
    app = Flask(__name__, static_folder=None)

    @app.get("/empty")
    def empty() -> Response:
        return Response(b'{"status":"ok"}', content_type="application/json")

    return app


def jobs_app(send: Callable[[Jobs], list[Any]]) -> Flask:
    """One that takes jobs; ``send`` puts them in line and returns their ids."""
    app = empty_app()

    @app.post("/jobs")
    def submit() -> tuple[Response, int]:
        return jsonify(id=send([request.get_json()])[0], status="queued"), 202

    @app.post("/jobs/batch")
    def submit_many() -> tuple[Response, int]:
        return jsonify(ids=send(request.get_json()["jobs"])), 202

    return app


def dramatiq() -> Flask:
    """A request is a message in a durable queue and nothing else: no row, no state, no result."""
    from loadtest.baselines.dramatiq_tasks import ACTORS

    return jobs_app(
        lambda jobs: [ACTORS[job["type"]].send(job["payload"]).message_id for job in jobs]
    )


def procrastinate() -> Flask:
    """A request is a row; a worker takes rows one by one, and keeps them with their outcome."""
    from loadtest.baselines.procrastinate_tasks import TASKS, app

    app.open()

    def send(jobs: Jobs) -> list[int]:
        if len(jobs) == 1:
            return [TASKS[jobs[0]["type"]].defer(payload=jobs[0]["payload"])]
        ids: list[int] = []
        for name, alike in groupby(jobs, key=lambda job: str(job["type"])):
            ids += TASKS[name].batch_defer(*({"payload": job["payload"]} for job in alike))
        return ids

    return jobs_app(send)
