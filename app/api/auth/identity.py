"""Who is calling: the tenant whose rows a request may see and change, or an operator.

A caller is asked for once a request; the answer stays in the WSGI environment.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from app.errors import Forbidden, Unauthenticated
from app.log_ids import CALLER
from app.tenants.directory import Caller, Directory
from app.tenants.tenant import TenantProfile

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment


class CallerTenants:
    """Tells callers by their keys."""

    def __init__(self, directory: Directory, anonymous: str) -> None:
        self.directory = directory
        #: Tenant that a caller without a key acts as; empty: there is none.
        self._anonymous = anonymous

    def current(self, environ: WSGIEnvironment) -> TenantProfile:
        """The tenant that is calling."""
        tenant = self.caller(environ).tenant
        if tenant is None:
            raise Forbidden("This is an operator's key; use a key of the tenant's.")
        return tenant

    def operator(self, environ: WSGIEnvironment) -> Caller:
        """The operator that is calling."""
        caller = self.caller(environ)
        if caller.tenant is None:
            return caller
        if not caller.key:
            raise Unauthenticated("An operator's API key is needed.")
        raise Forbidden("An operator's API key is needed; this one is a tenant's.")

    def caller(self, environ: WSGIEnvironment) -> Caller:
        """Whoever is calling; no key is not the same as a wrong one."""
        known: Caller | None = environ.get(CALLER)
        if known is not None:
            return known
        authorization = environ.get("HTTP_AUTHORIZATION")
        if authorization is not None:
            caller = self.directory.caller(authorization)
        else:
            caller = self._keyless()
        environ[CALLER] = caller
        return caller

    def _keyless(self) -> Caller:
        if not self._anonymous:
            raise Unauthenticated
        caller = self.directory.keyless(self._anonymous)
        if caller is None:
            raise Unauthenticated(f"There is no tenant {self._anonymous!r}.")
        return caller
