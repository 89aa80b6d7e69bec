"""Signing in and out: a key is exchanged for a session, whose token is in a cookie.

Signing in by OpenID Connect is in :mod:`app.console.oidc`.
"""

from __future__ import annotations

from http import HTTPStatus

from flask import Response, current_app, redirect, render_template, request
from werkzeug.wrappers import Response as AnyResponse

from app.api.auth.access import Access, actor_of
from app.api.auth.visitors import (
    HOST_PREFIX,
    OPERATOR_COOKIE,
    TENANT_COOKIE,
    is_same_origin,
    session_of,
)
from app.api.http.state import write_state
from app.api.services import current_services
from app.console.page import local, route
from app.errors import Forbidden, Unauthenticated
from app.log_ids import CALLER
from app.tenants.directory import Caller
from app.tenants.keys import presented
from app.tenants.sessions import Owner
from models.audit import Act, acting

#: What signing in is recorded as.
BEGINS = (Act.SESSION_BEGIN,)
#: Requests that a tenant's sign-in counts as.
SESSION_COST = 100


@route("GET", "/console/sign-in", Access.PUBLIC)
def get_sign_in() -> Response:
    return sign_in_page(local(request.args.get("next", "/")))


def sign_in_page(
    target: str, status: HTTPStatus = HTTPStatus.OK, *, key: str = "", provider: str = ""
) -> Response:
    """The page, perhaps with the reason why a key or a provider's user was refused."""
    variables = {"next": target, "refused": key, "refused_by_provider": provider}
    page = render_template("console/sign-in.html", oidc=current_services().oidc, **variables)
    return Response(page, status)


@route("POST", "/console/sign-in", Access.PUBLIC, BEGINS)
def post_sign_in() -> AnyResponse:
    """Begin a session for the pages that the key gives access to."""
    refuse_other_sites()
    key, target = request.form.get("key", "").strip(), local(request.form.get("next", "/"))
    try:
        if presented(key) is None:
            raise Unauthenticated("Not an API key: keys look like fair_abcd1234_….")
        caller = current_services().visitors.of_key(key)
    except Unauthenticated as error:
        current_services().refused.note(error, request.environ)
        return sign_in_page(target, HTTPStatus.UNAUTHORIZED, key=error.detail)
    if caller.tenant is not None:
        # A session is a row for half a day and one of the audit log, which stays for a year.
        gate = current_services().gate
        gate.pass_request(caller.tenant)
        gate.charge_requests(caller.tenant, SESSION_COST)
    # A proxy may have terminated TLS; the Origin header still has the browser's scheme.
    secure = request.is_secure or request.headers.get("Origin", "").startswith("https://")
    return begin_session(caller, caller.key, target, secure=secure)


def begin_session(caller: Caller, owner: Owner, target: str, *, secure: bool) -> AnyResponse:
    """Sign in, and go on to a page that the caller may see."""
    if caller.tenant is None:
        cookie, target = OPERATOR_COOKIE, "/" if target.startswith("/tenant") else target
    else:
        cookie, target = TENANT_COOKIE, target if target.startswith("/tenant") else "/tenant"
    request.environ[CALLER] = caller
    sessions = current_services().sessions
    with write_state(), acting(actor_of(request.environ, Access.CONSOLE, BEGINS)):
        sessions.end(sent_tokens(cookie))
        token = sessions.begin(owner, caller.tenant.name if caller.tenant else None)
    response = redirect(target, HTTPStatus.SEE_OTHER)
    name = HOST_PREFIX + cookie if secure else cookie
    forget(response, cookie, kept=name)
    response.set_cookie(name, token, httponly=True, samesite="Lax", secure=secure)
    return response


@route("POST", "/console/sign-out", Access.PUBLIC, ())
def post_sign_out() -> AnyResponse:
    """End the sessions of this browser, and its live pages."""
    refuse_other_sites()
    with write_state():
        current_services().sessions.end(sent_tokens(OPERATOR_COOKIE, TENANT_COOKIE))
    current_app.extensions["fairline_live_pages"].check_rights()
    response = redirect("/console/sign-in", HTTPStatus.SEE_OTHER)
    for cookie in (OPERATOR_COOKIE, TENANT_COOKIE):
        forget(response, cookie)
    return response


def refuse_other_sites() -> None:
    """Signing in and out is public, but only from a page of this site."""
    if not is_same_origin(request.environ):
        raise Forbidden("This request came from a page of another site.")


def cookie_here() -> str:
    """The cookie that gives access to the requested page."""
    return TENANT_COOKIE if request.path.startswith("/tenant") else OPERATOR_COOKIE


def sent_tokens(*cookies: str) -> list[str]:
    """The tokens that the browser sent in these cookies."""
    found = [session_of(request.environ, cookie) for cookie in cookies]
    return [token for token in found if token]


def forget(response: AnyResponse, cookie: str, kept: str = "") -> None:
    """Have the browser delete a cookie, by the names that it sent, except one that is kept."""
    for name, secure in ((cookie, False), (HOST_PREFIX + cookie, True)):
        if name in request.cookies and name != kept:
            response.delete_cookie(name, secure=secure, httponly=True, samesite="Lax")
