"""``/operator``: tenants, their terms and their keys, for who runs the platform.

Operators' own keys are issued on the command line alone: whoever could issue them with one
could stay in the house after that one was revoked.
"""

from __future__ import annotations

from typing import Any, Literal

import orjson
from flask import Blueprint, Response, request
from pydantic import Field

from app.api.auth.access import Access, open_to
from app.api.http.body import parse_body
from app.api.http.query import (
    bad_cursor,
    next_link,
    pack_cursor,
    parse_limit,
    unpack_cursor,
)
from app.api.http.reply import Reply
from app.api.http.state import patience, read_state
from app.api.openapi.declared import DeclaredResponse, described
from app.api.openapi.parts import CURSOR, LINK, LOCATION, page_limit
from app.api.routes.tenant import standing_document, terms_document
from app.api.schemas import operator_answers
from app.api.schemas.requests import Strict
from app.api.services import current_services
from app.errors import Conflict, NotFound
from app.reads.times import rfc3339
from app.tenants.changes import change_tenant, create_tenant, issue_key, no_tenant, revoke_key
from app.tenants.keys import SHORT
from app.tenants.listing import Listed, ListedKey, list_keys, list_tenants, read_tenant
from app.tenants.tenant import NAME as TENANT_NAME
from app.tenants.tenant import is_tenant_name
from app.tenants.terms import BOUNDS, LIMIT_BOUNDS, Change

operator = Blueprint("operator", __name__, url_prefix="/operator")

PAGE = 50
MOST = 500
#: Keys of one tenant that are shown.
MOST_KEYS = 1_000


def bounded(bounds: tuple[float, float]) -> dict[str, Any]:
    """Bounds for the document; the terms themselves are checked where they are changed.

    They say nothing about null, which they may stand beside.
    """
    return {"minimum": bounds[0], "maximum": bounds[1]}


class PoolTerms(Strict):
    """Limits in one pool; null clears."""

    in_flight: int | None = Field(
        None, description="Most jobs at once.", json_schema_extra=bounded(LIMIT_BOUNDS["in_flight"])
    )
    reserved: int | None = Field(
        None,
        description="Slots of its own; enterprise only.",
        json_schema_extra=bounded(LIMIT_BOUNDS["reserved"]),
    )
    depth: int | None = Field(
        None, description="Most jobs waiting.", json_schema_extra=bounded(LIMIT_BOUNDS["depth"])
    )


class TenantTerms(Strict):
    """Body of ``PATCH /operator/tenants/{name}``; what is left out stays, null clears."""

    tier: Literal["free", "standard", "pro", "enterprise"] = "standard"
    weight: float | None = Field(
        None, description="In place of the tier's.", json_schema_extra=bounded(BOUNDS["weight"])
    )
    submit_per_second: float | None = Field(
        None,
        description="Submissions a second.",
        json_schema_extra=bounded(BOUNDS["submit_per_second"]),
    )
    submit_burst: float | None = Field(
        None, description="Submissions at once.", json_schema_extra=bounded(BOUNDS["submit_burst"])
    )
    limits: dict[str, PoolTerms | None] | None = Field(
        default_factory=dict, max_length=100, description="By pool; null clears all."
    )

    def change(self) -> Change:
        """The same as a change of terms."""
        given = self.model_fields_set - {"limits", "name"}
        return Change(
            {name: getattr(self, name) for name in given},
            {
                pool: dict.fromkeys(LIMIT_BOUNDS)
                if terms is None
                else {name: getattr(terms, name) for name in terms.model_fields_set}
                for pool, terms in (self.limits or {}).items()
            },
            clear_limits=self.limits is None,
        )


class NewTenant(TenantTerms):
    """Body of ``POST /operator/tenants``."""

    name: str = Field(
        examples=["globex"], json_schema_extra={"pattern": f"^{TENANT_NAME.pattern}$"}
    )


class NewKey(Strict):
    """Body of ``POST /operator/tenants/{name}/keys``; none is a key without a name."""

    name: str = Field("", max_length=200, description="What you call it.")


@operator.get("/tenants")
@open_to(Access.OPERATOR)
@described(
    "All tenants",
    DeclaredResponse(200, "A page of them.", operator_answers.Tenants, (LINK,)),
    query=(page_limit(PAGE, MOST), CURSOR),
)
def get_tenants() -> Response:
    """By name."""
    limit, after = parse_limit(PAGE, MOST), parse_name_cursor()
    with read_state() as connection:
        found = list_tenants(connection, limit + 1, after)
    headers = {}
    if len(found) > limit:
        cursor = pack_cursor(found[limit - 1].tenant.name)
        headers = next_link("/operator/tenants", {"limit": limit, "cursor": cursor})
    return Reply(
        orjson.dumps({"tenants": [tenant_document(listed) for listed in found[:limit]]}),
        200,
        headers,
    )


@operator.post("/tenants")
@open_to(Access.OPERATOR)
@described(
    "Create a tenant",
    DeclaredResponse(201, "It is there.", operator_answers.TenantEntry, (LOCATION,)),
    body=NewTenant,
    errors=(Conflict,),
)
def post_tenant() -> Response:
    services = current_services()
    body = parse_body(request.environ, NewTenant, services.body_limits)
    with patience(services.read_seconds):
        create_tenant(services.engine, body.name, body.change())
    headers = {"Location": f"/operator/tenants/{body.name}"}
    return Reply(orjson.dumps(tenant_document(find_tenant(body.name))), 201, headers)


@operator.get("/tenants/<name>")
@open_to(Access.OPERATOR)
@described("A tenant", DeclaredResponse(200, "The tenant.", operator_answers.TenantInFull))
def get_tenant(name: str) -> Response:
    """Its terms, what they come to, and how it does by them."""
    known = find_tenant(name)
    with read_state() as connection:
        document = tenant_document(known) | standing_document(connection, known.tenant)
    return Reply(orjson.dumps(document), 200, {})


@operator.patch("/tenants/<name>")
@open_to(Access.OPERATOR)
@described(
    "Change a tenant's terms",
    DeclaredResponse(200, "The tenant as it is now.", operator_answers.TenantEntry),
    body=TenantTerms,
)
def patch_tenant(name: str) -> Response:
    """Change its terms; every process has heard of it a second later."""
    services = current_services()
    body = parse_body(request.environ, TenantTerms, services.body_limits)
    known = find_tenant(name)
    with patience(services.read_seconds):
        changed = change_tenant(services.engine, known.tenant.name, body.change())
    return Reply(orjson.dumps(tenant_document(Listed(changed, known.created_at))), 200, {})


@operator.get("/tenants/<name>/keys")
@open_to(Access.OPERATOR)
@described("A tenant's keys", DeclaredResponse(200, "At most 1,000.", operator_answers.Keys))
def get_keys(name: str) -> Response:
    """Without their secrets, which nobody has."""
    known = find_tenant(name)
    with read_state() as connection:
        found = list_keys(connection, MOST_KEYS, known.tenant.id)
    return Reply(orjson.dumps({"keys": [key_document(key) for key in found]}), 200, {})


@operator.post("/tenants/<name>/keys")
@open_to(Access.OPERATOR)
@described(
    "Issue a key",
    DeclaredResponse(201, "The key.", operator_answers.IssuedKey),
    body=NewKey,
    body_required=False,
)
def post_key(name: str) -> Response:
    """The one time that the key is shown."""
    services = current_services()
    empty = not request.content_length and "HTTP_TRANSFER_ENCODING" not in request.environ
    body = NewKey() if empty else parse_body(request.environ, NewKey, services.body_limits)
    known = find_tenant(name)
    with patience(services.read_seconds):
        issued = issue_key(services.engine, known.tenant.name, body.name)
    document = {"key": issued.key} | key_document(
        ListedKey(issued.id, known.tenant.name, body.name, issued.created_at, None)
    )
    return Reply(orjson.dumps(document), 201, {"Cache-Control": "no-store"})


@operator.delete("/keys/<key_id>")
@open_to(Access.OPERATOR)
@described("Revoke a key", DeclaredResponse(200, "It is revoked.", operator_answers.RevokedKey))
def delete_key(key_id: str) -> Response:
    """Revoke it, be it a tenant's or an operator's; no process takes it two seconds later."""
    services = current_services()
    if not SHORT.fullmatch(key_id):
        raise NotFound
    with patience(services.read_seconds):
        revoked_at = revoke_key(services.engine, key_id)
    document = {"id": key_id, "revoked_at": rfc3339(revoked_at)}
    return Reply(orjson.dumps(document), 200, {})


def find_tenant(name: str) -> Listed:
    """The tenant that a path names."""
    if is_tenant_name(name):
        with read_state() as connection:
            found = read_tenant(connection, name)
        if found is not None:
            return found
    raise no_tenant(name)


def parse_name_cursor() -> str:
    """``cursor``: the name that the page before ended with."""
    text = request.args.get("cursor")
    if text is None:
        return ""
    name = unpack_cursor(text)
    if not is_tenant_name(name):
        raise bad_cursor()
    return name


def tenant_document(listed: Listed) -> dict[str, Any]:
    """A tenant as operators see it."""
    return terms_document(listed.tenant) | {"created_at": rfc3339(listed.created_at)}


def key_document(key: ListedKey) -> dict[str, Any]:
    """A key as operators see it."""
    return {
        "id": key.id,
        "tenant": key.tenant,
        "name": key.name,
        "created_at": rfc3339(key.created_at),
        "revoked_at": rfc3339(key.revoked_at),
    }
