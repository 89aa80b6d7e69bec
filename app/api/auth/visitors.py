"""Who looks at a page: an operator or a tenant, in a browser.

A browser cannot send an API key with a link or with an ``EventSource``, so who has signed in
has the key in a cookie: one for the console, one for the tenant page. No script can read it.
Only pages look at it; the API itself goes by ``Authorization`` alone.

A cookie is sent whoever wrote the form, and who needs no key brings none that another site would
lack. What changes something must therefore come from a page of our own, as the browser itself
says (``Sec-Fetch-Site``, or ``Origin`` where that is missing: over plain HTTP, but for this
machine's own names, browsers send no other). What only shows something may be led to from
elsewhere by a link, but not be fetched or put into a page of another site.

Where the console is open, whoever calls from this machine, and by a name that is this machine's,
is an operator: a page of somebody else's that had its own name point here is not. Nor is who
comes through a proxy on this machine that says so, which would make everybody a local caller; one
that adds no header and passes on a loopback ``Host`` cannot be told, so the console must not be
open behind it.

Not guarded: cookies know no ports, so whatever else this machine serves over HTTP by the same
name is sent the key too.
"""

from __future__ import annotations

import ipaddress
import re
from typing import TYPE_CHECKING

from werkzeug.datastructures import MIMEAccept
from werkzeug.http import parse_accept_header
from werkzeug.sansio.http import parse_cookie

from app.errors import Forbidden, Unauthenticated
from app.log_ids import CALLER
from app.tenants.directory import Caller, Directory
from app.tenants.tenant import TenantProfile

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

OPERATOR_COOKIE = "fairline_operator"
TENANT_COOKIE = "fairline_tenant"
SAFE_METHODS = ("GET", "HEAD", "OPTIONS")
#: Who sits at the machine and needs no key.
LOCAL_OPERATOR = Caller("", b"", None)
#: A ``Host`` header: a name, an IPv4 or a bracketed IPv6 address, and perhaps a port.
HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([A-Za-z0-9._-]+))(?::\d{1,5})?", re.ASCII)
#: Whoever has one of these came through a proxy; what is in it anybody can write.
FORWARDED = (
    "HTTP_FORWARDED",
    "HTTP_VIA",
    "HTTP_X_FORWARDED_FOR",
    "HTTP_X_FORWARDED_HOST",
    "HTTP_X_REAL_IP",
)


class Visitors:
    """Tells those who look at pages."""

    def __init__(self, directory: Directory, anonymous: str, console_open: bool) -> None:
        self._directory = directory
        #: Tenant that a visitor without a key acts as; empty: there is none.
        self._anonymous = anonymous
        self._console_open = console_open

    @property
    def anonymous(self) -> str:
        """Whose pages are shown where nobody says whose."""
        return self._anonymous

    def operator(self, environ: WSGIEnvironment) -> Caller:
        """The operator who looks at the console."""
        caller = self._by_key(environ, OPERATOR_COOKIE)
        if caller is None and self._console_open and is_local(environ):
            caller = LOCAL_OPERATOR
        if caller is None:
            raise Unauthenticated("Sign in with an operator's API key.")
        if caller.tenant is not None:
            raise Forbidden("An operator's API key is needed; this one is a tenant's.")
        return self._let_in(environ, caller)

    def tenant(self, environ: WSGIEnvironment) -> TenantProfile:
        """The tenant whose page it is."""
        caller = self._by_key(environ, TENANT_COOKIE)
        if caller is None and self._anonymous:
            caller = self._directory.keyless(self._anonymous)
        if caller is None:
            raise Unauthenticated("Sign in with an API key of the tenant's.")
        if caller.tenant is None:
            raise Forbidden("This is an operator's key; use a key of the tenant's.")
        self._let_in(environ, caller)
        return caller.tenant

    def of_key(self, key: str) -> Caller:
        """Whom a key speaks for that somebody signs in with."""
        return self._directory.caller(f"Bearer {key}")

    def tenant_named(self, name: str) -> TenantProfile | None:
        """A tenant that an operator acts for."""
        caller = self._directory.keyless(name)
        return caller.tenant if caller is not None else None

    def _by_key(self, environ: WSGIEnvironment, cookie: str) -> Caller | None:
        authorization = environ.get("HTTP_AUTHORIZATION")
        if authorization is None:
            key = cookie_of(environ, cookie)
            if not key:
                return None
            authorization = f"Bearer {key}"
        return self._directory.caller(authorization)

    def _let_in(self, environ: WSGIEnvironment, caller: Caller) -> Caller:
        # No page of another site can send the header without having asked.
        if "HTTP_AUTHORIZATION" not in environ:
            safe = environ["REQUEST_METHOD"] in SAFE_METHODS
            if not (is_looked_at(environ) if safe else is_same_origin(environ)):
                raise Forbidden("This was sent from a page of another site.")
        environ[CALLER] = caller
        return caller


def cookie_of(environ: WSGIEnvironment, name: str) -> str | None:
    """The value of a cookie, if the browser sent it; others that are malformed do not matter."""
    return parse_cookie(environ.get("HTTP_COOKIE")).get(name)


def is_same_origin(environ: WSGIEnvironment) -> bool:
    """Whether a browser says that one of our own pages sent the request."""
    site = environ.get("HTTP_SEC_FETCH_SITE")
    if site is not None:
        return bool(site == "same-origin")
    host = environ.get("HTTP_HOST", "")
    scheme, _, origin = environ.get("HTTP_ORIGIN", "").partition("://")
    # A proxy may have taken the encryption off and not said so; none puts it on.
    known = ("https",) if environ.get("wsgi.url_scheme") == "https" else ("http", "https")
    return scheme in known and HOST.fullmatch(host) is not None and origin == host


def is_looked_at(environ: WSGIEnvironment) -> bool:
    """Whether a page of ours asks, or somebody follows a link or typed the address."""
    site = environ.get("HTTP_SEC_FETCH_SITE", "none")
    if site in ("same-origin", "none"):
        return True
    return environ.get("HTTP_SEC_FETCH_MODE") == "navigate" and (
        environ.get("HTTP_SEC_FETCH_DEST", "document") == "document"
    )


def asks_for_page(environ: WSGIEnvironment) -> bool:
    """Whether a browser asks, and for something to be shown: ``*/*`` is what programs send."""
    accepted = parse_accept_header(environ.get("HTTP_ACCEPT"), MIMEAccept)
    return "text/html" in [kind for kind, _ in accepted] and bool(
        accepted["text/html"] >= accepted["application/json"]
    )


def is_local(environ: WSGIEnvironment) -> bool:
    """Whether the caller sits at this machine and called it by a name of its own."""
    return (
        is_loopback(environ.get("REMOTE_ADDR", ""))
        and is_loopback(host_name(environ.get("HTTP_HOST", "")))
        and not any(header in environ for header in FORWARDED)
    )


def host_name(host: str) -> str:
    """A ``Host`` header without its port; empty if it is none."""
    found = HOST.fullmatch(host)
    return "" if found is None else found[1] or found[2]


def is_loopback(name: str) -> bool:
    """Whether a name or address is this machine."""
    if name.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(name)
    except ValueError:
        return False
    # As a socket for both versions tells of a caller by the older one.
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
