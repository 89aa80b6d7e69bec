"""Access control: every route declares who may call it, and with which scope of a key.

An application with a route that does not is not built.

``check_access`` runs before any code of a Flask route; the hot routes of ``app.server.wsgi`` call
the same ``authorize``. Likewise every route that is not read-only declares its acts for the audit
log, none if it is everyday use such as a submission; its view is called within
``models.audit.acting``. A public view, which learns only itself who calls, does so by itself.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import StrEnum
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar

from flask import Flask, current_app, request

from app.api.auth.visitors import SAFE_METHODS
from app.api.http.sub_request import sub_request_of
from app.api.services import Services, current_services
from app.errors import Forbidden
from app.log_ids import CALLER, address_of, request_id_of
from app.tenants.directory import Caller
from app.tenants.scopes import Scope, listed
from models.audit import Act, Actor, UndeclaredAct, acting
from models.store.roles import set_tenant

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

View = TypeVar("View", bound=Callable[..., Any])

#: Attributes of a view function with its declared access and scopes.
DECLARED = "fairline_access"
DECLARED_SCOPES = "fairline_scopes"
#: Attribute that says whether its calls count as requests of the tenant.
COUNTED = "fairline_counted"
#: Attribute with the acts that it is recorded as.
ACTS = "fairline_acts"


class Access(StrEnum):
    """Who may call a route."""

    #: Anyone: it contains no tenant's data.
    PUBLIC = "public"
    #: A tenant, by its key or as the anonymous tenant: its own rows only.
    TENANT = "tenant"
    #: An operator of the platform, by key.
    OPERATOR = "operator"
    #: The same in a browser: by key, after signing in, or from localhost.
    CONSOLE = "console"
    #: A tenant in a browser: by key, after signing in, or as the anonymous tenant.
    TENANT_PAGE = "tenant_page"


class UndeclaredAccess(RuntimeError):
    """A route does not declare who may call it, or with which scope."""


def open_to(
    access: Access, *scopes: Scope, acts: Sequence[Act] | None = None, counted: bool = True
) -> Callable[[View], View]:
    """Declare who may call a view: keys with any of the scopes. A public view has none.

    ``acts``: what it is recorded as; None: it is read-only. ``counted``: whether it is one of the
    requests whose rate is limited for each tenant; a submission has a rate of its own.
    """

    def declare(view: View) -> View:
        setattr(view, DECLARED, access)
        setattr(view, DECLARED_SCOPES, frozenset(scopes))
        setattr(view, ACTS, acts)
        setattr(view, COUNTED, counted)
        return view

    return declare


def access_of(view: Callable[..., Any] | None) -> Access | None:
    """The access a view declared."""
    return getattr(view, DECLARED, None)


def acts_of(view: Callable[..., Any] | None) -> Sequence[Act] | None:
    """The acts a view declared."""
    return getattr(view, ACTS, None)


def scopes_of_view(view: Callable[..., Any] | None) -> frozenset[Scope]:
    """The scopes a view declared, one of which is enough."""
    return getattr(view, DECLARED_SCOPES, frozenset())


def authorize(
    services: Services,
    environ: WSGIEnvironment,
    access: Access | None,
    scopes: frozenset[Scope],
    counted: bool = True,
) -> None:
    """Authenticate the caller; raises if it may not call the route, or not so often.

    What a tenant's request reads and changes from here on is limited to its rows by the database.
    """
    set_tenant(None)
    if access is Access.PUBLIC:
        return
    if access is Access.TENANT:
        services.tenants.current(environ)
    elif access is Access.CONSOLE:
        services.visitors.operator(environ)
    elif access is Access.TENANT_PAGE:
        services.visitors.tenant(environ)
    else:
        services.tenants.operator(environ)
    caller: Caller = environ[CALLER]
    if caller.scopes.isdisjoint(scopes):  # always, if none is declared
        needed = " or ".join(listed(scopes))
        who = "This API key lacks" if caller.digest else "You lack"
        raise Forbidden(f"{who} the scope {needed}.")
    if caller.tenant is not None:
        if counted and sub_request_of(environ).counted:
            services.gate.pass_request(caller.tenant)
        set_tenant(caller.tenant.id)


def guard(app: Flask) -> None:
    """Check each request that Flask handles; refuses an application with undeclared routes."""
    undeclared = sorted(
        rule.endpoint
        for rule in app.url_map.iter_rules()
        if not is_declared(app.view_functions.get(rule.endpoint))
    )
    if undeclared:
        raise UndeclaredAccess(
            f"{', '.join(undeclared)}: declare who may call it, and with which scope, with"
            " app.api.auth.access.open_to"
        )
    unrecorded = sorted(
        rule.endpoint
        for rule in app.url_map.iter_rules()
        if not (rule.methods or set()) <= set(SAFE_METHODS)
        and acts_of(app.view_functions[rule.endpoint]) is None
    )
    if unrecorded:
        raise UndeclaredAct(f"{', '.join(unrecorded)}: declare its acts, or () if it has none")
    app.before_request(check_access)
    for endpoint, view in app.view_functions.items():
        if (acts := acts_of(view)) and access_of(view) is not Access.PUBLIC:
            app.view_functions[endpoint] = recorded(view, acts)


def recorded(view: View, acts: Sequence[Act]) -> View:
    """The view, called as an act of the caller."""

    @wraps(view)
    def call(**values: Any) -> Any:
        with acting(actor_of(request.environ, access_of(view), acts)):
            return view(**values)

    return call  # type: ignore[return-value]  # the same to its callers


def actor_of(environ: WSGIEnvironment, access: Access | None, acts: Sequence[Act]) -> Actor:
    """The authenticated caller, as the audit log has it."""
    caller = environ[CALLER]
    role = "operator" if caller.tenant is None else "tenant"
    return Actor(
        via="console" if access in (Access.CONSOLE, Access.TENANT_PAGE) else "api",
        who=caller.key or ("console" if role == "operator" else "anonymous"),
        role=role,
        acts=acts,
        address=address_of(environ),
        request_id=request_id_of(environ),
        name=caller.name,
    )


def is_declared(view: Callable[..., Any] | None) -> bool:
    """Whether a view says who may call it: it is public, or has a scope."""
    access = access_of(view)
    return access is Access.PUBLIC or (access is not None and bool(scopes_of_view(view)))


def check_access() -> None:
    """Runs before each request that Flask handles; without a route the answer is 404 anyway."""
    if request.endpoint is not None:
        view = current_app.view_functions.get(request.endpoint)
        access, scopes = access_of(view), scopes_of_view(view)
        counted = getattr(view, COUNTED, True)
        authorize(current_services(), request.environ, access, scopes, counted)
