"""``/operator``: tenants, their terms and keys, quotas of dependencies, and scaling.

Operator keys are issued on the command line only: if the API could issue them, someone whose key
is about to be revoked could keep access with a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from flask import Blueprint, Response, request
from sqlalchemy import Engine

from app.api.http.body import parse_body
from app.api.http.query import next_link, parse_cursor, parse_limit
from app.api.http.reply import Reply, fields_of
from app.api.http.state import read_state, write_state
from app.api.http.sub_request import current_part
from app.api.openapi.declared import LINK, LOCATION, Returns, for_operators, paging
from app.api.routes.tenant import standing_document, terms_document
from app.api.schemas import platform_answers
from app.api.schemas.requests import NewKey, NewTenant, QuotaTerms, TenantTerms
from app.api.services import current_services
from app.errors import Conflict, NotFound
from app.tenants.changes import change_tenant, create_tenant, issue_key, no_tenant, revoke_key
from app.tenants.keys import SHORT
from app.tenants.listing import Listed, list_keys, list_tenants, read_tenant
from app.tenants.quotas import Declared, clear_quota, declare_quota, read_quotas
from app.tenants.scopes import Scope, listed
from app.tenants.suspension import delete_tenant, resume_tenant, suspend_tenant
from app.tenants.tenant import is_tenant_name
from models.audit import Act
from models.pools import POOLS

operator = Blueprint("operator", __name__, url_prefix="/operator")
quotas = Blueprint("quotas", __name__, url_prefix="/operator/quotas")
scaling = Blueprint("scaling", __name__)

PAGE = 50
MOST = 500
#: Maximum number of keys shown for a tenant.
MOST_KEYS = 1_000

READ_SCALING = """
    SELECT pool, workers AS desired, living AS current, depth,
           round(oldest_seconds::numeric, 3)::float8 AS oldest_age_seconds,
           round(utilisation::numeric, 3)::float8 AS utilisation, reason, changed_at, updated_at
    FROM desired_workers WHERE pool = ANY (%(pools)s::text[]) ORDER BY pool
"""


@operator.get("/tenants")
@for_operators(
    Scope.READ,
    "All tenants",
    Returns(200, platform_answers.Tenants, (LINK,)),
    query=paging(PAGE, MOST),
)
def get_tenants() -> Response:
    """By name."""
    limit = parse_limit(PAGE, MOST)
    after = parse_cursor(lambda name: name if is_tenant_name(name) else None) or ""
    with read_state() as connection:
        found = list_tenants(connection, limit + 1, after, by_bytes=current_part().by_bytes)
    tenants = [tenant_document(listed) for listed in found[:limit]]
    last = found[limit - 1].tenant.name if len(found) > limit else None
    return Reply({"tenants": tenants}, 200, next_link(limit, last))


@operator.post("/tenants")
@for_operators(
    Scope.OPERATE,
    "Create a tenant",
    Returns(201, platform_answers.TenantEntry, (LOCATION,)),
    body=NewTenant,
    errors=(Conflict,),
    acts=(Act.TENANT_CREATE,),
)
def post_tenant() -> Response:
    body = parse_body(NewTenant)
    with write_state() as engine:
        create_tenant(engine, body.name, body.change())
    headers = {"Location": f"/operator/tenants/{body.name}"}
    return Reply(tenant_document(find_tenant(body.name)), 201, headers)


@operator.get("/tenants/<name>")
@for_operators(Scope.READ, "A tenant", Returns(200, platform_answers.TenantInFull))
def get_tenant(name: str) -> Response:
    """Its terms, the effective limits, what is waiting and what was rejected."""
    known = find_tenant(name)
    with read_state() as connection:
        return Reply(tenant_document(known) | standing_document(connection, known.tenant))


@operator.patch("/tenants/<name>")
@for_operators(
    Scope.OPERATE,
    "Change a tenant's terms",
    Returns(200, platform_answers.TenantEntry),
    body=TenantTerms,
    acts=(Act.TENANT_CHANGE,),
)
def patch_tenant(name: str) -> Response:
    """Takes effect in every process about a second later."""
    body = parse_body(TenantTerms)
    known = find_tenant(name)
    with write_state() as engine:
        changed = change_tenant(engine, known.tenant.name, body.change())
    return Reply(tenant_document(Listed(changed, known.created_at)))


@operator.post("/tenants/<name>/suspend")
@for_operators(
    Scope.OPERATE,
    "Suspend a tenant",
    Returns(200, platform_answers.TenantEntry),
    acts=(Act.TENANT_SUSPEND,),
)
def post_suspend(name: str) -> Response:
    """Its submissions are a 403 and its queued jobs are not dispatched, in every process about a
    second later. What runs goes on."""
    return changed_reply(name, suspend_tenant)


@operator.post("/tenants/<name>/resume")
@for_operators(
    Scope.OPERATE,
    "Take a suspension back",
    Returns(200, platform_answers.TenantEntry),
    errors=(Conflict,),
    acts=(Act.TENANT_RESUME,),
)
def post_resume(name: str) -> Response:
    """409 if the tenant is being deleted."""
    return changed_reply(name, resume_tenant)


@operator.delete("/tenants/<name>")
@for_operators(
    Scope.OPERATE,
    "Delete a tenant",
    Returns(202, platform_answers.TenantEntry),
    acts=(Act.TENANT_DELETE,),
)
def remove_tenant(name: str) -> Response:
    """Suspends it, revokes its keys and removes everything it has in the background, usage too;
    then its name is free. There is no way back."""
    return changed_reply(name, delete_tenant, 202)


def changed_reply(name: str, change: Callable[[Engine, str], None], status: int = 200) -> Response:
    """Change a tenant; as it is then."""
    known = find_tenant(name).tenant.name
    with write_state() as engine:
        change(engine, known)
    return Reply(tenant_document(find_tenant(known)), status)


@operator.get("/tenants/<name>/keys")
@for_operators(Scope.READ, "A tenant's keys", Returns(200, platform_answers.Keys))
def get_keys(name: str) -> Response:
    """Without their secrets, which are not stored."""
    known = find_tenant(name)
    with read_state() as connection:
        found = list_keys(connection, MOST_KEYS, known.tenant.id)
    return Reply({"keys": [fields_of(platform_answers.Key, key) for key in found]})


@operator.post("/tenants/<name>/keys")
@for_operators(
    Scope.OPERATE,
    "Issue a key",
    Returns(201, platform_answers.IssuedKey),
    body=NewKey,
    body_required=False,
    acts=(Act.KEY_ISSUE,),
)
def post_key(name: str) -> Response:
    """The only response that contains the key."""
    empty = not request.content_length and "HTTP_TRANSFER_ENCODING" not in request.environ
    body = NewKey() if empty else parse_body(NewKey)
    tenant = find_tenant(name).tenant.name
    with write_state() as engine:
        issued = issue_key(
            engine, tenant, body.name, scopes=body.scopes, expires_at=body.expires_at
        )
    document = {
        "key": issued.key,
        "id": issued.id,
        "tenant": tenant,
        "name": body.name,
        "scopes": listed(issued.scopes),
        "created_at": issued.created_at,
        "expires_at": body.expires_at,
        "last_used_at": None,
        "revoked_at": None,
    }
    return Reply(document, 201, {"Cache-Control": "no-store"})


@operator.delete("/keys/<key_id>")
@for_operators(
    Scope.OPERATE, "Revoke a key", Returns(200, platform_answers.RevokedKey), acts=(Act.KEY_REVOKE,)
)
def delete_key(key_id: str) -> Response:
    """A tenant's or an operator's; within two seconds no process accepts it."""
    if not SHORT.fullmatch(key_id):
        raise NotFound
    with write_state() as engine:
        return Reply({"id": key_id, "revoked_at": revoke_key(engine, key_id)})


def find_tenant(name: str) -> Listed:
    """The tenant of that name, or 404."""
    if is_tenant_name(name):
        with read_state() as connection:
            found = read_tenant(connection, name)
        if found is not None:
            return found
    raise no_tenant(name)


def tenant_document(listed: Listed) -> dict[str, Any]:
    """A tenant as operators see it."""
    return terms_document(listed.tenant) | {"created_at": listed.created_at}


@quotas.get("")
@for_operators(Scope.READ, "Quotas of dependencies", Returns(200, platform_answers.Quotas))
def get_quotas() -> Response:
    """All that are declared, learned or closed."""
    with read_state() as connection:
        found = read_quotas(connection)
    return Reply({"quotas": [quota_document(quota) for quota in found]})


@quotas.put("/<dependency>")
@for_operators(
    Scope.OPERATE,
    "Declare a quota",
    Returns(200, platform_answers.Quota),
    body=QuotaTerms,
    acts=(Act.QUOTA_DECLARE,),
)
def put_quota(dependency: str) -> Response:
    """Replaces the previous declaration; takes effect within a second."""
    body = parse_body(QuotaTerms)
    known = {one.dependency for one in current_services().types.values() if one.dependency}
    with write_state() as engine:
        return Reply(quota_document(declare_quota(engine, dependency, body.model_dump(), known)))


@quotas.delete("/<dependency>")
@for_operators(Scope.OPERATE, "Forget a quota", Returns(204), acts=(Act.QUOTA_CLEAR,))
def delete_quota(dependency: str) -> Response:
    """Forgets the declared and learned limits, and reopens a closed dependency."""
    with write_state() as engine:
        clear_quota(engine, dependency)
    return Response(status=204)


def quota_document(quota: Declared) -> dict[str, Any]:
    """A quota as operators see it."""
    return {
        "dependency": quota.dependency,
        **fields_of(QuotaTerms, quota),
        "learned": {
            kind: {"limit": limit, "remaining": remaining, "reset_seconds": reset_seconds}
            for kind, (limit, remaining, reset_seconds) in quota.reading.items()
        },
        "learned_at": quota.read_at,
        "closed_until": quota.closed_until,
        "refused": quota.refused,
    }


@scaling.get("/operator/scaling")
@for_operators(
    Scope.READ,
    "How many workers each pool should have, and why",
    Returns(200, platform_answers.Scaling),
    or_scopes=(Scope.SCALE,),
)
def get_scaling() -> Response:
    """As the autoscaler decided, about a second ago while there is a leader."""
    # Flat enough for KEDA's metrics-api scaler: ``valueLocation: pools.medium.desired``.
    with read_state() as connection:
        rows = connection.exec_driver_sql(READ_SCALING, {"pools": list(POOLS)}).all()
    pools = {row.pool: fields_of(platform_answers.PoolScaling, row) for row in rows}
    return Reply({"pools": pools}, 200, {"Cache-Control": "no-cache"})
