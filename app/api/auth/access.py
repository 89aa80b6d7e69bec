"""Access control: every route declares who may call it, or the application is not built.

``check_access`` runs before any code of a Flask route; the hot routes of ``app.server.wsgi`` call
the same ``authorize``.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import StrEnum
from typing import TYPE_CHECKING, Any, TypeVar

from flask import Flask, current_app, request

from app.api.services import Services, current_services

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

View = TypeVar("View", bound=Callable[..., Any])

#: Attribute of a view function with its declared access.
DECLARED = "fairline_access"


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
    """A route does not declare who may call it."""


def open_to(access: Access) -> Callable[[View], View]:
    """Declare who may call a view."""

    def declare(view: View) -> View:
        setattr(view, DECLARED, access)
        return view

    return declare


def access_of(view: Callable[..., Any] | None) -> Access | None:
    """The access a view declared."""
    return getattr(view, DECLARED, None)


def authorize(services: Services, environ: WSGIEnvironment, access: Access | None) -> None:
    """Authenticate the caller; raises if it may not call the route."""
    if access is Access.TENANT:
        services.tenants.current(environ)
    elif access is Access.CONSOLE:
        services.visitors.operator(environ)
    elif access is Access.TENANT_PAGE:
        services.visitors.tenant(environ)
    elif access is not Access.PUBLIC:  # undeclared: operators only
        services.tenants.operator(environ)


def guard(app: Flask) -> None:
    """Check each request that Flask handles; refuses an application with undeclared routes."""
    undeclared = sorted(
        rule.endpoint
        for rule in app.url_map.iter_rules()
        if access_of(app.view_functions.get(rule.endpoint)) is None
    )
    if undeclared:
        raise UndeclaredAccess(
            f"{', '.join(undeclared)}: declare who may call it with app.api.auth.access.open_to"
        )
    app.before_request(check_access)


def check_access() -> None:
    """Runs before each request that Flask handles; without a route the answer is 404 anyway."""
    if request.endpoint is not None:
        view = current_app.view_functions.get(request.endpoint)
        authorize(current_services(), request.environ, access_of(view))
