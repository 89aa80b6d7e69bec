"""Authentication of browsers: operators and tenants who view pages.

Signing in begins a session, whose token is in a cookie that scripts cannot read, since a browser
cannot send a key with a link or an ``EventSource``. Only pages accept it; the API uses
``Authorization`` alone. See :mod:`app.tenants.sessions`.

Browsers send cookies with forms of other sites too. So a request that changes something must come
from one of our own pages, according to ``Sec-Fetch-Site`` or, where browsers do not send that (over
plain HTTP to hosts other than localhost), to ``Origin``. A page that only shows something may be
linked to from elsewhere, but not fetched by or embedded in another site.

With an open console, direct requests from this machine are an operator's; see
:mod:`app.policy.local_callers`.

Over TLS the name of the cookie begins with ``__Host-``: browsers accept such a one from this host
only, over TLS only. Without TLS they cannot: cookies ignore ports, so any other HTTP service under
the same name receives the token too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header
from werkzeug.sansio.http import parse_cookie

from app.api.auth.identity import NOT_A_TENANT, NOT_AN_OPERATOR, require_local
from app.errors import Forbidden, Unauthenticated
from app.log_ids import CALLER
from app.policy.local_callers import HOST
from app.tenants.directory import Caller, Callers
from app.tenants.sessions import Sessions
from app.tenants.tenant import TenantProfile

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

OPERATOR_COOKIE = "fairline_operator"
TENANT_COOKIE = "fairline_tenant"
HOST_PREFIX = "__Host-"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
#: An operator on localhost, who needs no key.
LOCAL_OPERATOR = Caller("", b"", None)


class Visitors:
    """Identifies the callers of pages."""

    def __init__(
        self,
        directory: Callers,
        sessions: Sessions,
        anonymous: str,
        console_open: bool,
        *,
        anywhere: bool = False,
        own: Callers | None = None,
    ) -> None:
        """``anywhere``: the tenant's visitors without a key may come from other machines.

        ``own``: the tenants of this cell alone, if ``directory`` knows those of all cells.
        """
        self._directory = directory
        self._own = own or directory
        self._sessions = sessions
        #: Tenant of visitors without a key; empty: a key is required.
        self.anonymous = anonymous
        self._anywhere = anywhere
        self._console_open = console_open

    def operator(self, environ: WSGIEnvironment) -> Caller:
        """The operator who views the console."""
        caller = self._signed_in(environ, OPERATOR_COOKIE)
        if caller is None:
            if not self._console_open:
                raise Unauthenticated("Sign in with an operator's API key.")
            require_local(environ)
            caller = LOCAL_OPERATOR
        if caller.tenant is not None:
            raise Forbidden(NOT_AN_OPERATOR)
        return self._check_site(environ, caller)

    def tenant(self, environ: WSGIEnvironment) -> TenantProfile:
        """The tenant who views its page."""
        caller = self._signed_in(environ, TENANT_COOKIE)
        if caller is None and self.anonymous:
            if not self._anywhere:
                require_local(environ)
            caller = self._directory.keyless(self.anonymous)
        if caller is None:
            raise Unauthenticated("Sign in with a tenant's API key.")
        if caller.tenant is None:
            raise Forbidden(NOT_A_TENANT)
        self._check_site(environ, caller)
        return caller.tenant

    def of_key(self, key: str) -> Caller:
        """The caller that signs in with a key."""
        return self._directory.caller(f"Bearer {key}")

    def tenant_named(self, name: str) -> TenantProfile | None:
        """A tenant on whose behalf an operator acts."""
        caller = None if "\0" in name else self._own.keyless(name)
        return caller.tenant if caller is not None else None

    def _signed_in(self, environ: WSGIEnvironment, cookie: str) -> Caller | None:
        authorization = environ.get("HTTP_AUTHORIZATION")
        if authorization is not None:
            return self._directory.caller(authorization)
        token = session_of(environ, cookie)
        if not token:
            return None
        # A stream is followed by a page that may have been left alone.
        return self._sessions.caller(token, used=not environ["PATH_INFO"].endswith("/events"))

    def _check_site(self, environ: WSGIEnvironment, caller: Caller) -> Caller:
        # Other sites cannot send the header without a preflight request.
        if "HTTP_AUTHORIZATION" not in environ:
            safe = environ["REQUEST_METHOD"] in SAFE_METHODS
            if not (is_navigation(environ) if safe else is_same_origin(environ)):
                raise Forbidden("This request was sent from another site.")
        environ[CALLER] = caller
        return caller


def session_of(environ: WSGIEnvironment, cookie: str) -> str | None:
    """The token of a session, if sent; over TLS only by the name that no other host can set."""
    token = cookie_of(environ, HOST_PREFIX + cookie)
    if token is None and environ.get("wsgi.url_scheme") != "https":
        token = cookie_of(environ, cookie)
    return token


def cookie_of(environ: WSGIEnvironment, name: str) -> str | None:
    """The value of a cookie, if sent; malformed other cookies do not matter."""
    return parse_cookie(environ.get("HTTP_COOKIE")).get(name)


def is_same_origin(environ: WSGIEnvironment) -> bool:
    """Whether, according to the browser, one of our own pages sent the request."""
    site = environ.get("HTTP_SEC_FETCH_SITE")
    if site is not None:
        return bool(site == "same-origin")
    host = environ.get("HTTP_HOST", "")
    scheme, _, origin = environ.get("HTTP_ORIGIN", "").partition("://")
    # A proxy may have terminated TLS without saying so; none adds it.
    known = ("https",) if environ.get("wsgi.url_scheme") == "https" else ("http", "https")
    return scheme in known and HOST.fullmatch(host) is not None and origin == host


def is_navigation(environ: WSGIEnvironment) -> bool:
    """Whether one of our pages sent the request, or a user followed a link or typed the address."""
    site = environ.get("HTTP_SEC_FETCH_SITE", "none")
    if site in ("same-origin", "none"):
        return True
    return environ.get("HTTP_SEC_FETCH_MODE") == "navigate" and (
        environ.get("HTTP_SEC_FETCH_DEST", "document") == "document"
    )


def asks_for_page(environ: WSGIEnvironment) -> bool:
    """Whether a browser wants a page: programs send ``*/*``."""
    accepted = parse_accept_header(environ.get("HTTP_ACCEPT"), MIMEAccept)
    return "text/html" in [kind for kind, _ in accepted] and bool(
        accepted["text/html"] >= accepted["application/json"]
    )
