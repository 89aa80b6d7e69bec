"""Dramatiq's front door: ``gunicorn 'loadtest.baselines.dramatiq_app.web:create_app()'``.

Dramatiq keeps one connection and channel a thread, here a greenlet; one greenlet serves all
requests of a kept-alive connection, so each is opened once.
"""

from __future__ import annotations

from flask import Flask, Response, jsonify, request

from loadtest.baselines.dramatiq_app.tasks import ACTORS


def create_app() -> Flask:
    """One job, many jobs, and nothing."""
    app = Flask(__name__, static_folder=None)

    @app.post("/jobs")
    def submit() -> tuple[Response, int]:
        body = request.get_json()
        message = ACTORS[body["type"]].send(body["payload"])
        return jsonify(id=message.message_id, status="queued"), 202

    @app.post("/jobs/batch")
    def submit_many() -> tuple[Response, int]:
        ids = [
            ACTORS[job["type"]].send(job["payload"]).message_id
            for job in request.get_json()["jobs"]
        ]
        return jsonify(ids=ids), 202

    @app.get("/empty")
    def empty() -> Response:
        return Response(b'{"status":"ok"}', content_type="application/json")

    return app
