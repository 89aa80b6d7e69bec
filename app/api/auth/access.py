"""Who may call a route. Every route says so; an application with one that does not is not built.

Flask's routes pass ``check_access`` before anything of theirs runs, the hot ones of
``front_door`` call the same ``admit``.
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

#: Attribute of a view function that holds what it declared.
DECLARED = "fairline_access"


class Access(StrEnum):
    """For whom a route is."""

    #: Everybody: nothing in it is a tenant's.
    PUBLIC = "public"
    #: A tenant, by its key or as the anonymous one: its own rows and no others.
    TENANT = "tenant"
    #: Who runs the platform, by an operator's key.
    OPERATOR = "operator"
    #: The same in a browser: by a key, by having signed in, or by sitting at the machine.
    CONSOLE = "console"
    #: A tenant in a browser: by a key, by having signed in, or as the anonymous one.
    TENANT_PAGE = "tenant_page"


class UndeclaredAccess(RuntimeError):
    """A route does not say who may call it."""


def open_to(access: Access) -> Callable[[View], View]:
    """Declare for whom a view is."""

    def declare(view: View) -> View:
        setattr(view, DECLARED, access)
        return view

    return declare


def access_of(view: Callable[..., Any] | None) -> Access | None:
    """What a view declared."""
    return getattr(view, DECLARED, None)


def admit(services: Services, environ: WSGIEnvironment, access: Access | None) -> None:
    """Let the caller pass, or say why not."""
    if access is Access.TENANT:
        services.tenants.current(environ)
    elif access is Access.CONSOLE:
        services.visitors.operator(environ)
    elif access is Access.TENANT_PAGE:
        services.visitors.tenant(environ)
    elif access is not Access.PUBLIC:  # what is not declared is nobody's but the operators'
        services.tenants.operator(environ)


def guard(app: Flask) -> None:
    """Check every request of Flask's, and that every route can be checked."""
    undeclared = sorted(
        rule.endpoint
        for rule in app.url_map.iter_rules()
        if access_of(app.view_functions.get(rule.endpoint)) is None
    )
    if undeclared:
        raise UndeclaredAccess(
            f"{', '.join(undeclared)}: say who may call it, by @open_to of app.api.auth.access"
        )
    app.before_request(check_access)


def check_access() -> None:
    """Runs before each request that Flask answers; what has no route is answered 404."""
    if request.endpoint is not None:
        view = current_app.view_functions.get(request.endpoint)
        admit(current_services(), request.environ, access_of(view))
