"""The baseline's HTTP API: ``gunicorn 'loadtest.baselines.plain_celery.web:create_app()'``."""

from __future__ import annotations

import uuid
from typing import Any

from flask import Flask, Response, jsonify, request
from sqlalchemy import insert

from loadtest.baselines.plain_celery.store import applications
from loadtest.baselines.plain_celery.tasks import engine, score
from loadtest.baselines.web import empty_app


def create_app() -> Flask:
    """A route for applications, beside the empty one."""
    app = empty_app()

    @app.post("/applications")
    def submit() -> tuple[Response, int]:
        body = request.get_json()
        problem = find_problem(body)
        if problem:
            return jsonify(error=problem), 422
        application_id = uuid.uuid4()
        with engine.begin() as connection:
            role, payload = body.get("role", "general"), body["payload"]
            values = {"id": application_id, "role": role, "payload": payload}
            connection.execute(insert(applications).values(candidate=body["candidate"], **values))
        score.delay(str(application_id))
        return jsonify(id=str(application_id), status="pending"), 202

    return app


def find_problem(body: Any) -> str | None:
    if not isinstance(body, dict):
        return "the body must be an object"
    if not isinstance(body.get("candidate"), str) or not 0 < len(body["candidate"]) <= 200:
        return "candidate must be a text of 1 to 200 characters"
    if not isinstance(body.get("payload"), str | dict):
        return "payload must be a text or an object"
    return None
