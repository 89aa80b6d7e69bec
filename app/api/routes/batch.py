"""``POST /jobs/batch``: up to a thousand jobs in one commit, with a result for each."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import islice
from typing import Any

from flask import Blueprint, Response, request
from pydantic import ValidationError

from app.admission import Admitted, Submission
from app.admission.intake import status_of, take_in, take_what_fits
from app.api.http.body import (
    may_hold_nul,
    read_document,
    refuse_nul,
    validate_outline,
)
from app.api.http.idempotency import parse_key
from app.api.http.problems import STATUS, members
from app.api.http.reply import FIRST_POLL_SECONDS, REPLAYED, Reply, limit_headers
from app.api.openapi.declared import (
    IDEMPOTENCY_KEY,
    KEYED_ERRORS,
    SUBMISSION_ERRORS,
    SUBMITTED,
    Returns,
    for_tenants,
)
from app.api.routes.jobs import submission_of
from app.api.schemas import answers
from app.api.schemas.requests import SubmitBatch, SubmitJob
from app.api.services import Services, current_services
from app.errors import (
    Forbidden,
    Refused,
    ValidationFailed,
    field_error,
    invalid_document,
)
from app.log_ids import SENT_AGAIN
from app.tenants.allowed_types import require_types
from app.tenants.scopes import Scope
from app.tenants.tenant import TenantProfile
from app.validation import ErrorBudget, refuse_many_fields
from tasks.errors_of_schema import MOST_ERRORS

batch = Blueprint("batch", __name__)

#: Maximum number of field errors reported per item.
MOST_ITEM_ERRORS = 5

#: A parsed item, or what is wrong with it.
Read = Submission | ValidationFailed | Forbidden


@batch.post("/jobs/batch")
@for_tenants(
    Scope.SUBMIT,
    "Submit up to 1,000 jobs in one commit",
    Returns(202, answers.BatchResults, SUBMITTED),
    body=SubmitBatch,
    headers=(IDEMPOTENCY_KEY,),
    acts=(),
    errors=(*SUBMISSION_ERRORS, *KEYED_ERRORS),
    counted=False,
)
def post_batch() -> Response:
    """Valid items are accepted, invalid ones are rejected individually."""
    services, environ = current_services(), request.environ
    tenant = services.tenants.current(environ)
    spent = SENT_AGAIN in environ
    services.gate.refuse_early(tenant, spent=spent)
    body = read_document(environ, services.body_limits)
    items = validate_outline(body, SubmitBatch).jobs
    allowance = services.gate.pass_rate(tenant, len(items), spent=spent)
    with_nul = may_hold_nul(body)
    budget = ErrorBudget()
    read = [read_item(services, tenant, item, with_nul, budget) for item in items]
    accepted = [item for item in read if isinstance(item, Submission)]
    # With other job types registered, other items are valid: it is not a repetition then, or the
    # ids of the first request would be assigned to the wrong items.
    rejected = [index for index, item in enumerate(read) if not isinstance(item, Submission)]
    key = parse_key(environ, body, reading=str(rejected))
    if not accepted:
        if isinstance(read[0], Forbidden):
            raise read[0]
        raise no_item_is_valid(read)
    refused: Mapping[str, Refused] = {}
    if key is None:
        admitted, refused = take_what_fits(services, tenant, accepted)
    else:
        # A key identifies the whole batch, which may fit when repeated and must not be a
        # different request then.
        admitted = take_in(services, tenant, accepted, key)
    headers = {"Retry-After": FIRST_POLL_SECONDS, **limit_headers(allowance)}
    if admitted.repeated:
        headers[REPLAYED] = "true"
    taken, results = len(admitted.ids), results_of(read, admitted, refused)
    document = {"accepted": taken, "rejected": len(read) - taken, "results": results}
    return Reply(document, 202, headers)


def results_of(
    read: list[Read], admitted: Admitted, refused: Mapping[str, Refused]
) -> list[dict[str, Any]]:
    """The result of each item, in order."""
    ids = iter(admitted.ids)
    results: list[dict[str, Any]] = []
    for index, item in enumerate(read):
        error = refused.get(item.id) if isinstance(item, Submission) else item
        if error is not None:
            problem = members(STATUS[type(error)], error.code, error.detail, error.errors)
            results.append({"error": {"index": index, **problem}})
        elif isinstance(item, Submission):
            results.append({"id": next(ids), "status": status_of(item, admitted)})
    return results


def read_item(
    services: Services, tenant: TenantProfile, item: Any, with_nul: bool, budget: ErrorBudget
) -> Read:
    """An item as a submission, or its errors."""
    try:
        if with_nul:
            refuse_nul(item)
        refuse_many_fields(item, SubmitJob)
        submission = submission_of(services, tenant.id, SubmitJob.model_validate(item), budget)
        require_types(tenant.types, (submission.type,))
        return submission
    except Forbidden as error:
        return error
    except ValidationFailed as error:
        return error.first(MOST_ITEM_ERRORS)
    except ValidationError as error:
        return invalid_document(error).first(MOST_ITEM_ERRORS)


def no_item_is_valid(read: list[Read]) -> ValidationFailed:
    """The errors of all items by their path in the body, as many as one response reports."""
    wrong = [(index, item) for index, item in enumerate(read) if isinstance(item, ValidationFailed)]
    found = (
        field_error(f"jobs.{index}.{error.field}".removesuffix(".(body)"), error.message)
        for index, item in wrong
        for error in item.errors
    )
    listed, total = tuple(islice(found, MOST_ERRORS)), sum(item.total for _, item in wrong)
    return ValidationFailed("No item of the batch is valid.", listed, total)
