"""Procrastinate's front door: ``gunicorn 'loadtest.baselines.procrastinate_app.web:create_app()'``.

Opened once a process, synchronously, with a pool of connections of its own.
"""

from __future__ import annotations

from itertools import groupby

from flask import Flask, Response, jsonify, request

from loadtest.baselines.procrastinate_app.tasks import TASKS, app


def create_app() -> Flask:
    """One job, many jobs, and nothing."""
    app.open()
    flask = Flask(__name__, static_folder=None)

    @flask.post("/jobs")
    def submit() -> tuple[Response, int]:
        body = request.get_json()
        job_id = TASKS[body["type"]].defer(payload=body["payload"])
        return jsonify(id=job_id, status="queued"), 202

    @flask.post("/jobs/batch")
    def submit_many() -> tuple[Response, int]:
        ids: list[int] = []
        for name, jobs in groupby(request.get_json()["jobs"], key=lambda job: job["type"]):
            ids += TASKS[name].batch_defer(*({"payload": job["payload"]} for job in jobs))
        return jsonify(ids=ids), 202

    @flask.get("/empty")
    def empty() -> Response:
        return Response(b'{"status":"ok"}', content_type="application/json")

    return flask
