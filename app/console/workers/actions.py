"""What can be done to a worker: drain it.

The request is a mark in the worker's row, and nothing else: the worker hears of it with its next
heartbeat and ends itself. Whoever keeps the processes alive starts another one in its place.
"""

from __future__ import annotations

import logging

from flask import Blueprint, request
from werkzeug.wrappers import Response

from app.api.auth.access import Access, open_to
from app.api.http.state import patience
from app.api.services import current_services
from app.console.done import done
from models.presence import request_drain

logger = logging.getLogger(__name__)

workers_actions = Blueprint("workers_actions", __name__)


@workers_actions.post("/console/workers/drain")
@open_to(Access.CONSOLE)
def post_drain() -> Response:
    """Ask one worker to end once its jobs have."""
    services = current_services()
    worker = request.form.get("worker", "").replace("\0", "")
    with patience(services.read_seconds):
        asked = request_drain(services.engine, worker)
    if not asked:
        return done("/console/workers", f"{worker} is gone, or drains already.")
    logger.warning("%s was asked to drain", worker)
    return done("/console/workers", f"{worker} was asked to drain: it ends what it runs, and goes.")
