"""Submitting an application from the leaderboard, on behalf of its tenant.

As with ``POST /applications``: the tenant's rate and depth, the same validation, the same commit.
Errors are shown beside the form, which keeps what was typed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import orjson
from flask import Response, render_template, request
from werkzeug.wrappers import Response as AnyResponse

from app.admission.intake import take_in
from app.api.http.body import JsonDocument, validate_body
from app.api.http.problems import problem_of
from app.api.http.state import write_state
from app.api.routes.applications import application_submission
from app.api.schemas.requests import SubmitApplication
from app.api.services import current_services
from app.console.forms import document_of
from app.console.leaderboard.page import LEADERBOARD, PATH
from app.console.page import PageRequest, done, route
from app.errors import FairlineError, FieldError, ValidationFailed, invalid_field
from models.audit import Act, record_first

#: Fields of the document by those of the form.
FIELDS = {"candidate": "candidate", "role": "role", "payload": "application"}

NOTHING_TYPED = "must not be empty"


@route("POST", PATH, acts=(Act.JOB_SUBMIT,))
def post_application() -> AnyResponse:
    # The body as a whole was limited when it was read.
    request.max_form_memory_size = None
    typed = {name: request.form.get(name, "") for name in ("tenant", *FIELDS.values())}
    typed["application"] = typed["application"].replace("\r\n", "\n")
    try:
        application_id = submit(typed)
    except FairlineError as error:
        return refusal(typed, error)
    return done(f"{PATH}/{application_id}", f"Submitted for {typed['tenant']}.")


def submit(typed: Mapping[str, str]) -> str:
    services = current_services()
    tenant = services.visitors.tenant_named(typed["tenant"])
    if tenant is None:
        raise ValidationFailed("There is no tenant with that name.")
    services.gate.pass_rate(tenant)
    submission = application_submission(tenant, body_of(typed), services.cell)
    with write_state() as engine:
        after = {"type": submission.type}
        record_first(engine, Act.JOB_SUBMIT, submission.id, tenant=tenant.name, after=after)
    return take_in(services, tenant, (submission,), None).ids[0]


def body_of(typed: Mapping[str, str]) -> SubmitApplication:
    """What was typed as the API takes it, or all of its errors."""
    nothing = () if typed["application"].strip() else (FieldError("payload", NOTHING_TYPED),)
    try:
        body = validate_body(application_of(typed), SubmitApplication)
    except ValidationFailed as error:
        raise ValidationFailed(errors=(*error.errors, *nothing)) from None
    if nothing:
        raise ValidationFailed(errors=nothing)
    return body


def application_of(typed: Mapping[str, str]) -> JsonDocument:
    """The body that a client would have sent."""
    names = {"candidate": typed["candidate"], "role": typed["role"] or "general"}
    payload = typed["application"].encode()
    try:
        if isinstance(orjson.loads(payload), dict):
            return document_of(names, payload)
    except orjson.JSONDecodeError as error:
        if payload.lstrip().startswith(b"{"):
            wrong = "starts with { but is not a JSON object; start plain text differently"
            raise invalid_field("payload", wrong) from error
    return document_of(names, orjson.dumps(typed["application"]))


def refusal(typed: Mapping[str, str], error: FairlineError) -> Response:
    """The page again, with the errors."""
    answer = problem_of(error)
    asked = PageRequest(request.full_path.rstrip("?"), {}, request.args)
    context: dict[str, Any] = {
        **LEADERBOARD.read(asked),
        "typed": typed,
        "trouble": {"detail": error.detail, "fields": fields_of(error)},
    }
    page = render_template(LEADERBOARD.template, **context, asked=asked)
    headers = {name: value for name, value in answer.headers if name == "Retry-After"}
    return Response(page, answer.status_code, headers)


def fields_of(error: FairlineError) -> dict[str, str]:
    """The first error of each field of the form."""
    found: dict[str, str] = {}
    for problem in error.errors:
        name = FIELDS.get(problem.field.partition(".")[0])
        if name is not None:
            found.setdefault(name, problem.message)
    return found
