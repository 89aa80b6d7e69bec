"""``/applications/{id}/erase``, for its tenant and for operators."""

from __future__ import annotations

from flask import Blueprint, Response

from app.api.http.query import known_id
from app.api.http.reply import POLL_SECONDS, Reply
from app.api.http.state import write_state
from app.api.openapi.declared import ASK_AFTER, Returns, for_operators, for_tenants
from app.api.schemas import answers
from app.api.services import current_services, current_tenant
from app.errors import NotFound
from models.jobs.erase import request_erasure

privacy = Blueprint("privacy", __name__)

DONE = Returns(200, answers.ErasedApplication)
GOING_ON = Returns(202, answers.ErasedApplication, (ASK_AFTER,))


@privacy.post("/applications/<application_id>/erase")
@for_tenants("Erase an application", DONE, also=(GOING_ON,))
def post_erase(application_id: str) -> Response:
    """Removes the candidate, the application, its score and everything its job has left, in any
    state. 202 while its run is being stopped or a blob is left, which takes seconds. May be
    repeated; reading it then is a 410."""
    return erase_reply(current_tenant().id, known_id(application_id))


@privacy.post("/operator/applications/<application_id>/erase")
@for_operators("Erase an application of any tenant", DONE, also=(GOING_ON,))
def post_erase_any(application_id: str) -> Response:
    """As its tenant can."""
    return erase_reply(None, known_id(application_id))


def erase_reply(tenant_id: int | None, application_id: str) -> Response:
    """Erase an application of the tenant, or of any."""
    with write_state() as engine:
        state = request_erasure(engine, tenant_id, application_id)
    if state is None:
        raise NotFound
    current_services().views.forget(application_id)
    document: dict[str, object] = {
        "id": application_id,
        "status": "erased" if state.erased_at else "erasing",
        "requested_at": state.requested_at,
        "erased_at": state.erased_at,
    }
    if state.erased_at is None:
        return Reply(document, 202, {"Retry-After": POLL_SECONDS})
    return Reply(document)
