"""The reply to ``DELETE``: cancelled, asked to stop, or too late."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum

import orjson
from flask import Response

from app.api.http.reply import POLL_SECONDS, STATUS_HEADER, Reply
from app.api.http.state import patience
from app.api.services import Services
from app.errors import Conflict, NotFound
from app.reads.times import rfc3339
from models.jobs.cancel import cancel
from models.jobs.states import JobStatus


def cancel_reply(
    services: Services,
    tenant_id: int,
    job_id: str,
    names: Mapping[JobStatus, StrEnum] | None = None,
) -> Response:
    """Cancel the tenant's job; ``names`` is what the caller calls the statuses.

    200: it will not run. 202: it runs and was asked to stop. 409: it has ended otherwise. A
    job that was cancelled before is cancelled now.
    """
    with patience(services.read_seconds):
        found = cancel(services.engine, tenant_id, job_id)
    if found is None:
        raise NotFound
    status = (names[found.status] if names else found.status).value
    headers = {STATUS_HEADER: status, "Cache-Control": "no-cache"}
    if found.status is JobStatus.CANCELLED:
        return Reply(orjson.dumps({"id": job_id, "status": status}), 200, headers)
    if found.status is not JobStatus.RUNNING:
        raise Conflict(f"It is {status} already; there is nothing left to cancel.")
    document = {
        "id": job_id,
        "status": status,
        "cancel_requested_at": rfc3339(found.requested_at),
    }
    return Reply(orjson.dumps(document), 202, headers | {"Retry-After": POLL_SECONDS})
