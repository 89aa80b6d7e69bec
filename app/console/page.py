"""What a page is: a path, what it reads, and a template with parts that live.

A part that changes while somebody looks is a block ``live_<name>`` of the template, inside an
element with ``data-live="<name>"``. The page is rendered whole when it is asked for; afterwards
:mod:`app.console.live` renders these blocks alone.

The HTML of a part must be the same as long as nothing has changed: times are told as moments,
which the browser turns into ages.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from flask import Flask, current_app, render_template, request
from werkzeug.datastructures import MultiDict

from app.api.auth.access import Access, open_to
from app.api.services import current_services
from app.tenants.tenant import TenantProfile

PREFIX = "live_"


@dataclass(frozen=True, slots=True)
class PageRequest:
    """What somebody wants to see."""

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
        """The tenant, on pages that are a tenant's."""
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
    #: How often it is looked at anew for those who watch.
    every_seconds: float = 2.0
    #: The view that shows it to browsers and answers programs; empty: it has one of its own.
    beside: str = ""

    @property
    def endpoint(self) -> str:
        """Its name among Flask's."""
        return self.beside or f"page:{self.rule}"


PAGES = "fairline_pages"


def add_page(app: Flask, page: LivePage) -> None:
    """Make it answer requests."""

    @open_to(page.access)
    def view(**values: Any) -> str:
        return show(page, values)

    app.extensions.setdefault(PAGES, {})[page.endpoint] = page
    if not page.beside:
        app.add_url_rule(page.rule, page.endpoint, view)


def show_beside() -> str:
    """The page of the view that answers the current request."""
    return show(current_app.extensions[PAGES][request.endpoint], request.view_args or {})


def show(page: LivePage, values: Mapping[str, Any]) -> str:
    """The whole page for the current request."""
    tenant = None
    if page.access is Access.TENANT_PAGE:
        tenant = current_services().visitors.tenant(request.environ)
    url = request.full_path.rstrip("?")
    asked = PageRequest(url, values, request.args, tenant)
    return render_template(page.template, **page.read(asked), asked=asked)


def render_parts(page: LivePage, asked: PageRequest) -> dict[str, str]:
    """The live parts alone, by name."""
    template = current_app.jinja_env.get_template(page.template)
    variables: dict[str, Any] = {**page.read(asked), "asked": asked}
    current_app.update_template_context(variables)
    context = template.new_context(variables)
    return {
        name.removeprefix(PREFIX): "".join(block(context)).strip()
        for name, block in template.blocks.items()
        if name.startswith(PREFIX)
    }
