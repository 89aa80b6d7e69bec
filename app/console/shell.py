"""What all pages share: headers, errors, notices, the live stream, ``/docs``.

A visitor without access to a page is asked to sign in and redirected back afterwards. Errors are
pages for browsers and problem documents for scripts.
"""

from __future__ import annotations

from http import HTTPStatus
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from flask import (
    Flask,
    Response,
    current_app,
    has_request_context,
    redirect,
    render_template,
    request,
)
from werkzeug.datastructures import MultiDict
from werkzeug.exceptions import HTTPException
from werkzeug.wrappers import Response as AnyResponse

from app.api.auth.access import Access, access_of, authorize
from app.api.auth.visitors import (
    SAFE_METHODS,
    asks_for_page,
    session_of,
)
from app.api.http.body import read_body
from app.api.http.problems import problem_of
from app.api.http.state import wants_newest
from app.api.routes.events import event_stream
from app.api.routes.overview import cells_here
from app.api.services import current_services
from app.config import Settings
from app.console.assets import asset_url
from app.console.formatting import FORMATS
from app.console.live import LivePages, has_left
from app.console.page import (
    LIVE_PAGES,
    NOTICE_COOKIE,
    PAGES,
    TO_CHANGE,
    LivePage,
    PageRequest,
    console,
    local,
    route,
)
from app.console.pages import ELSEWHERE, NAVIGATION, OF_CELLS
from app.console.sign_in import cookie_here, forget
from app.errors import (
    FairlineError,
    NotFound,
    PayloadTooLarge,
    invalid_field,
    shortened,
)
from app.log_ids import CALLER
from app.reads.events.stream import prepare
from app.tenants.directory import Caller
from app.tenants.scopes import Scope
from models.store.errors import StateStoreError

#: Nothing from other hosts, and no script or style that is not a file of ours.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:;"
    " font-src 'self'; connect-src 'self'; form-action 'self'; base-uri 'none';"
    " frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
#: Each costs memory; a form with a checkbox per row has the most.
MOST_FORM_FIELDS = 10_000
TO_WATCH = frozenset({Scope.READ})
PAGE_ACCESS = (Access.CONSOLE, Access.TENANT_PAGE)
#: Titles of error pages that say more than HTTP's phrase.
TITLES = {401: "Sign in", 403: "Access denied", 404: "Not found", 503: "Temporarily unavailable"}


def register_console(app: Flask, settings: Settings) -> None:
    app.template_folder = "console/templates"
    app.extensions["fairline_live_pages"] = LivePages(app)
    app.extensions[PAGES] = {page.endpoint: page for page in LIVE_PAGES}
    app.config["LAB_RESULTS"] = settings.lab_results
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.globals.update(
        FORMATS,
        asset=asset_url,
        navigation=(*NAVIGATION, *OF_CELLS) if settings.registry_url else NAVIGATION,
        elsewhere=ELSEWHERE,
        flower_url=settings.flower_url,
    )
    app.register_blueprint(console)
    app.context_processor(common_variables)
    app.after_request(finish)


def register_console_errors(app: Flask) -> None:
    """After the checks of access and the API's handlers: errors of the console are pages."""
    app.before_request(read_form)
    app.before_request(refuse_nul)
    app.register_error_handler(Exception, answer_error)


def read_form() -> None:
    """A form is read as every body is: with limits of size and time."""
    if is_of_console() and request.method not in SAFE_METHODS:
        body = read_body(request.environ, current_services().body_limits)
        if body.count(b"&") > MOST_FORM_FIELDS:
            raise PayloadTooLarge(f"A form must not have more than {MOST_FORM_FIELDS:,} fields.")
        request.environ["wsgi.input"] = BytesIO(body)
        request.environ["CONTENT_LENGTH"] = str(len(body))


def refuse_nul() -> None:
    """PostgreSQL's text cannot hold a NUL character. Forms check their own fields."""
    if is_of_console():
        refuse_nul_in(request.args)


def refuse_nul_in(given: MultiDict[str, str]) -> None:
    """Raise for the first field with a NUL character."""
    for name, value in given.items(multi=True):
        if "\0" in name or "\0" in value:
            field = shortened(name.replace("\0", ""))
            raise invalid_field(field, "must not contain NUL characters")


def common_variables() -> dict[str, Any]:
    if not has_request_context():  # a part that is rendered for several viewers
        return {"path": "", "notice": "", "signed_in": False, "read_only": False, "cell": ""}
    return {
        "standby": current_services().standby,
        "cell": own_cell(),
        "path": request.path,
        "notice": unquote(request.cookies.get(NOTICE_COOKIE, "")),
        "signed_in": session_of(request.environ, cookie_here()) is not None,
        "read_only": is_read_only(),
    }


def own_cell() -> str:
    """The cell that is shown; empty: there are none."""
    cells = cells_here()
    return "" if cells is None else cells.name_of(current_services().cell)


def is_read_only() -> bool:
    """Whether the visitor may see this page, but send no form of it."""
    caller: Caller | None = request.environ.get(CALLER)
    view = current_app.view_functions.get(request.endpoint or "")
    needed = TO_CHANGE.get(access_of(view) or Access.PUBLIC)
    return caller is not None and needed is not None and needed not in caller.scopes


def finish(response: Response) -> Response:
    """Headers of pages; a notice is shown once."""
    if response.mimetype == "text/html":
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if NOTICE_COOKIE in request.cookies and response.status_code == HTTPStatus.OK:
            response.delete_cookie(NOTICE_COOKIE)
    return response


@route("GET", "/docs", Access.PUBLIC)
def get_docs() -> str:
    """Swagger UI, from an installed package. A key entered there is gone with the page."""
    return render_template("console/docs.html")


# Staying up to date.


@route("GET", "/console/events")
def get_console_events() -> Response:
    return follow(Access.CONSOLE)


@route("GET", "/tenant/events", Access.TENANT_PAGE)
def get_tenant_events() -> Response:
    return follow(Access.TENANT_PAGE)


def follow(access: Access) -> Response:
    """The stream of the page that ``page`` names, while the viewer has access."""
    services, environ = current_services(), request.environ
    page, asked = find_page(request.args.get("page", "/"), access)
    live_pages: LivePages = current_app.extensions["fairline_live_pages"]
    wire = environ.get("gunicorn.socket")

    def allowed() -> bool:
        if has_left(wire):
            return False
        try:
            # The stream was counted as one request when it began.
            authorize(services, environ, access, TO_WATCH, counted=False)
        except StateStoreError:
            return True  # access is not withdrawn while it cannot be checked
        except FairlineError:
            return False
        return True

    if request.method == "HEAD":  # nothing would read the stream, so it would never end
        return event_stream(iter(()))
    prepare(wire)
    standby = services.standby
    newest_seconds = standby.most_lag_seconds if standby and wants_newest() else 0.0
    return event_stream(live_pages.watch(page, asked, allowed, newest_seconds))


def find_page(url: str, access: Access) -> tuple[LivePage, PageRequest]:
    """The page at an address, if it is for visitors with this access."""
    parts = urlsplit(local(url, "/console/nowhere"))
    try:
        endpoint, values = current_app.url_map.bind("").match(parts.path)
    except HTTPException:
        raise NotFound from None
    page: LivePage | None = current_app.extensions[PAGES].get(endpoint)
    if page is None or page.access is not access:
        raise NotFound
    if access is Access.TENANT_PAGE:
        # Without the query, which they ignore: each different address would be rendered.
        tenant = current_services().visitors.tenant(request.environ)
        return page, PageRequest(parts.path, values, MultiDict(), tenant)
    args = MultiDict(parse_qsl(parts.query, keep_blank_values=True))
    refuse_nul_in(args)
    return page, PageRequest(url, values, args)


@route("GET", "/console", Access.PUBLIC)
@route("GET", "/console/", Access.PUBLIC)
def get_console() -> AnyResponse:
    return redirect("/", HTTPStatus.SEE_OTHER)


# Errors.


@route("GET", "/console/<path:rest>")
def get_nothing(rest: str) -> Response:
    raise NotFound


def is_of_console() -> bool:
    """Whether the address is that of a page."""
    view = current_app.view_functions.get(request.endpoint or "")
    return request.path.startswith("/console") or access_of(view) in PAGE_ACCESS


def is_unknown() -> bool:
    """Whether nothing of this application is at or below the first part of the address.

    Addresses below those of the API are programs' and get problem documents; ``/tenant`` has both.
    """
    if request.endpoint is not None:
        return False
    beside = [
        access_of(current_app.view_functions.get(rule.endpoint))
        for rule in current_app.url_map.iter_rules()
        if rule.rule.split("/")[1] == request.path.split("/")[1]
    ]
    return not beside or any(access in PAGE_ACCESS for access in beside)


def answer_error(error: Exception) -> Any:
    """A page for people, a problem document for programs."""
    answer = problem_of(error)
    wants_page = asks_for_page(request.environ) and (is_of_console() or is_unknown())
    if not wants_page or answer.status_code < HTTPStatus.BAD_REQUEST:
        return answer
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        target = quote(request.full_path.rstrip("?") if request.method == "GET" else "/")
        response = redirect(f"/console/sign-in?next={target}", HTTPStatus.SEE_OTHER)
        forget(response, cookie_here())  # its session has ended, or its key
        return response
    problem = answer.get_json(force=True)
    title = TITLES.get(answer.status_code, problem["title"])
    fields = problem.get("errors", ())
    page = render_template("console/error.html", title=title, problem=problem, fields=fields)
    return Response(page, answer.status_code)
