"""``/operator/quotas``: what dependencies take in a minute, declared and learned."""

from __future__ import annotations

from typing import Any

import orjson
from flask import Blueprint, Response, request
from pydantic import Field

from app.api.auth.access import Access, open_to
from app.api.http.body import parse_body
from app.api.http.reply import Reply
from app.api.http.state import patience, read_state
from app.api.openapi.declared import DeclaredResponse, described
from app.api.schemas import operator_answers
from app.api.schemas.requests import Strict
from app.api.services import current_services
from app.reads.times import rfc3339
from app.tenants.quotas import MOST, Declared, clear_quota, declare_quota, read_quotas

quotas = Blueprint("quotas", __name__, url_prefix="/operator/quotas")


#: For the document; limits are checked where they are declared.
BOUNDED: dict[str, Any] = {"exclusiveMinimum": 0, "maximum": MOST}


class QuotaTerms(Strict):
    """Body of ``PUT /operator/quotas/{dependency}``; what is left out is not declared."""

    requests_per_minute: float | None = Field(
        None, description="Calls a minute.", examples=[60], json_schema_extra=BOUNDED
    )
    tokens_in_per_minute: float | None = Field(
        None, description="Input tokens a minute.", json_schema_extra=BOUNDED
    )
    tokens_out_per_minute: float | None = Field(
        None, description="Output tokens a minute.", json_schema_extra=BOUNDED
    )


@quotas.get("")
@open_to(Access.OPERATOR)
@described("Quotas of dependencies", DeclaredResponse(200, "All of them.", operator_answers.Quotas))
def get_quotas() -> Response:
    """All that are declared, learned or closed."""
    with read_state() as connection:
        found = read_quotas(connection)
    return Reply(orjson.dumps({"quotas": [quota_document(quota) for quota in found]}), 200, {})


@quotas.put("/<dependency>")
@open_to(Access.OPERATOR)
@described(
    "Declare a quota",
    DeclaredResponse(200, "The quota as it is now.", operator_answers.Quota),
    body=QuotaTerms,
)
def put_quota(dependency: str) -> Response:
    """Declare a quota in place of the one before; it holds within a second."""
    services = current_services()
    body = parse_body(request.environ, QuotaTerms, services.body_limits)
    known = {one.dependency for one in services.types.values() if one.dependency}
    with patience(services.read_seconds):
        declared = declare_quota(services.engine, dependency, body.model_dump(), known)
    return Reply(orjson.dumps(quota_document(declared)), 200, {})


@quotas.delete("/<dependency>")
@open_to(Access.OPERATOR)
@described("Forget a quota", DeclaredResponse(204, "It is forgotten."))
def delete_quota(dependency: str) -> Response:
    """Forget what was declared and learned, and open what was closed."""
    services = current_services()
    with patience(services.read_seconds):
        clear_quota(services.engine, dependency)
    return Response(status=204)


def quota_document(quota: Declared) -> dict[str, Any]:
    """A quota as operators see it."""
    return {
        "dependency": quota.dependency,
        "requests_per_minute": quota.requests_per_minute,
        "tokens_in_per_minute": quota.tokens_in_per_minute,
        "tokens_out_per_minute": quota.tokens_out_per_minute,
        "learned": {
            kind: {"limit": limit, "remaining": remaining, "reset_seconds": reset_seconds}
            for kind, (limit, remaining, reset_seconds) in quota.reading.items()
        },
        "learned_at": rfc3339(quota.read_at),
        "closed_until": rfc3339(quota.closed_until),
        "refused": quota.refused,
    }
