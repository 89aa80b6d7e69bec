"""Authentication by API key: the tenant whose rows a request may access, or an operator.

The caller is looked up once per request and kept in the WSGI environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.errors import Forbidden, Unauthenticated
from app.log_ids import CALLER
from app.policy.local_callers import why_not_local
from app.tenants.directory import Caller, Directory
from app.tenants.tenant import TenantProfile

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

NOT_A_TENANT = "This is an operator's API key; use a tenant's API key."
NOT_AN_OPERATOR = "An operator's API key is required; this is a tenant's."


class CallerTenants:
    """Identifies callers by their API keys."""

    def __init__(self, directory: Directory, anonymous: str, *, anywhere: bool = False) -> None:
        """``anywhere``: callers without a key may come from other machines."""
        self.directory = directory
        #: Tenant of callers without a key; empty: a key is required.
        self._anonymous = anonymous
        self._anywhere = anywhere

    def current(self, environ: WSGIEnvironment) -> TenantProfile:
        """The tenant that is calling."""
        tenant = self.caller(environ).tenant
        if tenant is None:
            raise Forbidden(NOT_A_TENANT)
        return tenant

    def operator(self, environ: WSGIEnvironment) -> Caller:
        """The operator that is calling."""
        caller = self.caller(environ)
        if caller.tenant is None:
            return caller
        if not caller.key:
            raise Unauthenticated("An operator's API key is required.")
        raise Forbidden(NOT_AN_OPERATOR)

    def caller(self, environ: WSGIEnvironment) -> Caller:
        """The caller; a wrong key is an error even where none is required."""
        known: Caller | None = environ.get(CALLER)
        if known is not None:
            return known
        authorization = environ.get("HTTP_AUTHORIZATION")
        if authorization is None:
            caller = self._keyless(environ)
        else:
            caller = self.directory.caller(authorization)
        environ[CALLER] = caller
        return caller

    def _keyless(self, environ: WSGIEnvironment) -> Caller:
        if not self._anonymous:
            raise Unauthenticated
        if not self._anywhere:
            require_local(environ)
        caller = self.directory.keyless(self._anonymous)
        if caller is None:
            raise Unauthenticated(f"Tenant {self._anonymous!r} does not exist.")
        return caller


def require_local(environ: WSGIEnvironment) -> None:
    """Refuse a caller without a key unless it calls directly and from this machine."""
    if reason := why_not_local(environ):
        raise Unauthenticated(
            "Without an API key only direct requests from this machine are accepted, such as to"
            f" http://localhost; this one is not: {reason}. Send a key, or sign in with one."
        )
