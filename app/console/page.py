"""What a page is: a path, what it reads, and a template with live parts.

A part that is updated while somebody views the page is a block ``live_<name>`` of the template,
inside an element with ``data-live="<name>"``; see :mod:`app.console.live`. Its HTML must be the
same as long as nothing has changed, so times are moments, which the browser shows as chosen.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import quote

from flask import Blueprint, current_app, redirect, render_template, request
from sqlalchemy import Row
from werkzeug.datastructures import MultiDict
from werkzeug.wrappers import Response

from app.api.auth.access import Access, open_to
from app.api.http.state import CHANGED_COOKIE, read_state
from app.api.services import current_services
from app.errors import NotFound
from app.tenants.scopes import Scope
from app.tenants.tenant import TenantProfile
from models.audit import Act
from models.store.roles import every_tenant, tenant_scope

View = TypeVar("View", bound=Callable[..., Any])

NOTICE_COOKIE = "fairline_notice"
PREFIX = "live_"
MOST_NOTICE = 300
#: Where an application keeps its live pages, by endpoint.
PAGES = "fairline_pages"

#: The scope of a key whose visitor changes something.
TO_CHANGE = {Access.CONSOLE: Scope.OPERATE, Access.TENANT_PAGE: Scope.SUBMIT}

#: Every route of the console.
console = Blueprint("console", __name__)


@dataclass(frozen=True, slots=True)
class PageRequest:
    """Which page to show, and to whom."""

    #: Path and query.
    url: str
    #: The variable parts of the path.
    values: Mapping[str, Any] = field(default_factory=dict)
    #: The query.
    args: MultiDict[str, str] = field(default_factory=MultiDict)
    #: Whose page it is; None in the operators' console.
    tenant: TenantProfile | None = None

    @property
    def own(self) -> TenantProfile:
        assert self.tenant is not None
        return self.tenant


@dataclass(frozen=True, slots=True)
class LivePage:
    """A page that stays up to date."""

    #: As Flask writes rules.
    rule: str
    template: str
    #: What the template needs.
    read: Callable[[PageRequest], dict[str, Any]]
    access: Access = Access.CONSOLE
    #: How often it is rendered again while somebody views it.
    every_seconds: float = 2.0
    #: An endpoint that shows the page to browsers and answers programs; empty: the page's own.
    beside: str = ""

    @property
    def endpoint(self) -> str:
        return self.beside or f"console.GET {self.rule}"


LIVE_PAGES: list[LivePage] = []


def live_page(*args: Any, **options: Any) -> LivePage:
    """A :class:`LivePage` that is part of the console."""
    page = LivePage(*args, **options)
    LIVE_PAGES.append(page)
    if not page.beside:
        route("GET", page.rule, page.access)(lambda **values: show(page, values))
    return page


def route(
    method: str,
    rule: str,
    access: Access = Access.CONSOLE,
    acts: Sequence[Act] | None = None,
) -> Callable[[View], View]:
    """Register a view of the console, for operators unless ``access`` says otherwise.

    To show a page takes the scope ``read``, to send a form that of a change. ``acts``: what it is
    recorded as in the audit log; None if it is read-only.
    """
    scopes = [Scope.READ if method == "GET" else TO_CHANGE[access]] if access in TO_CHANGE else []

    def register(view: View) -> View:
        declared = open_to(access, *scopes, acts=acts)(view)
        console.add_url_rule(rule, f"{method} {rule}", declared, methods=[method])
        return view

    return register


def show_beside() -> str:
    """The page of the view that answers the current request."""
    return show(current_app.extensions[PAGES][request.endpoint], request.view_args or {})


def show(page: LivePage, values: Mapping[str, Any]) -> str:
    """The whole page for the current request."""
    tenant = None
    if page.access is Access.TENANT_PAGE:
        tenant = current_services().visitors.tenant(request.environ)
    asked = PageRequest(request.full_path.rstrip("?"), values, request.args, tenant)
    return render_template(page.template, **page.read(asked), asked=asked)


def render_parts(page: LivePage, asked: PageRequest) -> dict[str, str]:
    """The live parts alone, by name; of a tenant's page, with what the tenant may see."""
    with tenant_scope(asked.tenant.id) if asked.tenant else every_tenant():
        return _render_parts(page, asked)


def _render_parts(page: LivePage, asked: PageRequest) -> dict[str, str]:
    template = current_app.jinja_env.get_template(page.template)
    variables: dict[str, Any] = {**page.read(asked), "asked": asked}
    current_app.update_template_context(variables)
    context = template.new_context(variables)
    return {
        name.removeprefix(PREFIX): "".join(block(context)).strip()
        for name, block in template.blocks.items()
        if name.startswith(PREFIX)
    }


def find_row(statement: str, missing: str = "", **values: Any) -> Row[Any]:
    """The first row of a statement in its own transaction; else NotFound with that message."""
    with read_state() as connection:
        row = connection.exec_driver_sql(statement, values).first()
    if row is None:
        raise NotFound(missing)
    return row


def done(back_to: str, notice: str) -> Response:
    """After an action: redirect to a page that shows what happened."""
    response = redirect(local(back_to), HTTPStatus.SEE_OTHER)
    response.set_cookie(
        NOTICE_COOKIE, quote(notice[:MOST_NOTICE]), max_age=30, httponly=True, samesite="Lax"
    )
    if standby := current_services().standby:
        seconds = math.ceil(standby.most_lag_seconds) + 1
        response.set_cookie(CHANGED_COOKIE, "1", max_age=seconds, httponly=True, samesite="Lax")
    return response


def local(target: str, otherwise: str = "/") -> str:
    """A path of this site, whatever was asked for."""
    safe = target.startswith("/") and not target.startswith(("//", "/\\"))
    return target if safe and target.isprintable() else otherwise
