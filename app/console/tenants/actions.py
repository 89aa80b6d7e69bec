"""What operators do with tenants: create one, change its terms, issue and revoke its keys.

By the rules of ``/operator/tenants``. A key is shown once, in the answer to the form that issued
it: it is not stored, and no other page has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from http import HTTPStatus
from typing import Any

from flask import Response, render_template, request
from werkzeug.wrappers import Response as AnyResponse

from app.api.http.problems import problem_of
from app.api.http.state import read_state, write_state
from app.api.routes.operator import MOST_KEYS, find_tenant
from app.console.forms import changed_names, number_of
from app.console.page import LivePage, PageRequest, done, route
from app.console.tenants.one import TENANT
from app.console.tenants.page import TENANTS
from app.console.tenants.terms_form import parse_tenant, parse_terms, refused_terms
from app.errors import FairlineError, NotFound, invalid_field
from app.tenants.changes import change_tenant, create_tenant, issue_key, revoke_key
from app.tenants.listing import list_keys
from app.tenants.tenant import TenantProfile
from models.audit import Act
from models.store.clock import DATABASE_CLOCK

PATH = "/console/tenants"
MOST_LABEL = 200
#: Until a new key expires.
MOST_DAYS = 36_500


@route("POST", PATH, acts=(Act.TENANT_CREATE,))
def post_tenant() -> AnyResponse:
    typed = request.form.to_dict()
    try:
        body = parse_tenant(typed)
        with write_state() as engine:
            create_tenant(engine, body.name, body.change())
    except FairlineError as error:
        return again(TENANTS, problem_of(error).status_code, form=refused_terms(typed, error))
    return done(f"{PATH}/{body.name}", f"{body.name} was created. To submit jobs, it needs a key.")


@route("POST", f"{PATH}/<name>", acts=(Act.TENANT_CHANGE, Act.KEY_ISSUE))
def post_one(name: str) -> AnyResponse:
    """The forms of its page, at the address of that page: it stays live when it answers."""
    tenant = find_tenant(name).tenant
    return post_key(tenant) if request.form.get("act") == "key" else post_terms(tenant)


def post_terms(tenant: TenantProfile) -> AnyResponse:
    """Takes effect in every process about a second later."""
    typed = request.form.to_dict()
    try:
        changed = {name: typed[name] for name in typed.keys() & changed_names(typed)}
        body = parse_terms(changed, tenant)
        with write_state() as engine:
            change_tenant(engine, tenant.name, body.change())
    except NotFound:
        raise
    except FairlineError as error:
        form = refused_terms(typed, error)
        return again(TENANT, problem_of(error).status_code, {"name": tenant.name}, form=form)
    return done(f"{PATH}/{tenant.name}#terms", f"The terms of {tenant.name} were changed.")


def post_key(tenant: TenantProfile) -> AnyResponse:
    """The only page that ever shows the key."""
    label = request.form.get("label", "").strip()
    if len(label) > MOST_LABEL or "\0" in label:
        raise invalid_field("label", f"must have at most {MOST_LABEL} characters, and no NUL")
    # Without one it may do all, as before there were scopes.
    scopes = request.form.getlist("scopes") or None
    with write_state() as engine:
        issued = issue_key(engine, tenant.name, label, scopes=scopes, expires_at=typed_expiry())
    return again(TENANT, HTTPStatus.CREATED, {"name": tenant.name}, issued=issued)


def typed_expiry() -> datetime | None:
    """When the new key expires, by the days that were typed."""
    days = number_of(request.form.get("expires_days", ""))
    if not isinstance(days, int) or not 0 <= days <= MOST_DAYS:
        raise invalid_field("expires_days", f"must be a number of days up to {MOST_DAYS:,}")
    return DATABASE_CLOCK.now() + timedelta(days=days) if days else None


@route("POST", f"{PATH}/<name>/keys/<key_id>/revoke", acts=(Act.KEY_REVOKE,))
def post_revoke(name: str, key_id: str) -> AnyResponse:
    """A key of this tenant; within two seconds no process accepts it."""
    tenant = find_tenant(name).tenant
    with read_state() as connection:
        keys = {key.id for key in list_keys(connection, MOST_KEYS, tenant.id)}
    if key_id not in keys:
        raise NotFound
    with write_state() as engine:
        revoke_key(engine, key_id)
    return done(f"{PATH}/{tenant.name}#keys", f"The key fair_{key_id}_… is revoked.")


def again(
    page: LivePage, status: int, values: Mapping[str, str] | None = None, **shown: Any
) -> Response:
    """The page of the form, with what became of it."""
    asked = PageRequest(request.full_path.rstrip("?"), values or {}, request.args)
    context = page.read(asked) | shown
    return Response(render_template(page.template, **context, asked=asked), status)
