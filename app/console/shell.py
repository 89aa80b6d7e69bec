"""What all pages share: signing in and out, headers, errors, notices, the live stream.

A visitor who may not see a page is asked to sign in, and led back afterwards. Errors are pages
for browsers and problem documents for scripts.
"""

from __future__ import annotations

from http import HTTPStatus
from io import BytesIO
from typing import Any
from urllib.parse import parse_qsl, quote, unquote, urlsplit

from flask import (
    Blueprint,
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

from app.api.auth.access import Access, access_of, open_to
from app.api.auth.visitors import (
    OPERATOR_COOKIE,
    SAFE_METHODS,
    TENANT_COOKIE,
    asks_for_page,
    is_same_origin,
)
from app.api.http.body import read_body
from app.api.http.problems import problem_of
from app.api.routes.events import event_stream
from app.api.services import current_services
from app.config import Settings
from app.console.assets import asset_url, assets
from app.console.done import NOTICE_COOKIE, local
from app.console.formatting import WORDS
from app.console.live import Stage, has_left
from app.console.page import PAGES, LivePage, PageRequest, add_page
from app.console.pages import BLUEPRINTS, LIVE_PAGES, NAVIGATION
from app.errors import FieldError, Forbidden, NotFound, Unauthenticated, ValidationFailed
from app.field_errors import shortened
from app.reads.events.stream import prepare
from app.tenants.keys import presented
from models.store.errors import StateStoreError

shell = Blueprint("shell", __name__)

#: Nothing from elsewhere, no script and no style that is not a file of ours.
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "font-src 'self'",
        "connect-src 'self'",
        "form-action 'self'",
        "base-uri 'none'",
        "frame-ancestors 'none'",
    )
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cache-Control": "no-store",
}
PAGE_ACCESS = (Access.CONSOLE, Access.TENANT_PAGE)
#: What a browser is told when something went wrong, in place of the phrase of HTTP.
TITLES = {401: "Sign in", 403: "Not yours", 404: "Nothing here", 503: "One moment"}


def register_console(app: Flask, settings: Settings) -> None:
    """Put the console into the application."""
    app.template_folder = "console/templates"
    app.extensions["fairline_stage"] = Stage(app)
    app.config["LAB_RESULTS"] = settings.lab_results
    app.jinja_env.trim_blocks = app.jinja_env.lstrip_blocks = True
    app.jinja_env.globals.update(
        WORDS, asset=asset_url, navigation=NAVIGATION, flower_url=settings.flower_url
    )
    for blueprint in (assets, shell, *BLUEPRINTS):
        app.register_blueprint(blueprint)
    for page in LIVE_PAGES:
        add_page(app, page)
    app.context_processor(surroundings)
    app.after_request(finish)


def register_console_errors(app: Flask) -> None:
    """What comes after the checks of access and in place of the API's own ways.

    Errors of the console's addresses are pages; all others stay what they are.
    """
    app.before_request(take_form)
    app.before_request(refuse_nul)
    app.register_error_handler(Exception, answer_error)


def take_form() -> None:
    """A form is read as every body is: in bounded size and time."""
    if is_of_console() and request.method not in SAFE_METHODS:
        body = read_body(request.environ, current_services().body_limits)
        request.environ["wsgi.input"] = BytesIO(body)
        request.environ["CONTENT_LENGTH"] = str(len(body))


def refuse_nul() -> None:
    """No text of PostgreSQL's holds a NUL character. Forms answer for their own fields."""
    if is_of_console():
        refuse_nul_in(request.args)


def refuse_nul_in(given: MultiDict[str, str]) -> None:
    """The first field that holds one is named."""
    for name, value in given.items(multi=True):
        if "\0" in name or "\0" in value:
            field = shortened(name.replace("\0", ""))
            raise ValidationFailed(errors=(FieldError(field, "must not contain NUL characters"),))


def surroundings() -> dict[str, Any]:
    """What every template may use."""
    if not has_request_context():  # a part that is rendered for many
        return {"path": "", "notice": "", "signed_in": False}
    return {
        "path": request.path,
        "notice": unquote(request.cookies.get(NOTICE_COOKIE, "")),
        "signed_in": cookie_here() in request.cookies,
    }


def cookie_here() -> str:
    """The one that opens the page that was asked for."""
    return TENANT_COOKIE if request.path.startswith("/tenant") else OPERATOR_COOKIE


def finish(response: Response) -> Response:
    """Headers of what a browser shows; a notice is shown once."""
    if response.mimetype == "text/html":
        for name, value in HEADERS.items():
            response.headers.setdefault(name, value)
        if NOTICE_COOKIE in request.cookies and response.status_code == HTTPStatus.OK:
            response.delete_cookie(NOTICE_COOKIE)
    return response


# Signing in.


@shell.get("/console/sign-in")
@open_to(Access.PUBLIC)
def get_sign_in() -> str:
    return render_template("console/sign-in.html", next=local(request.args.get("next", "/")))


@shell.post("/console/sign-in")
@open_to(Access.PUBLIC)
def post_sign_in() -> AnyResponse:
    """Keep the key in a cookie, for the pages that it opens."""
    refuse_other_sites()
    key, target = request.form.get("key", "").strip(), local(request.form.get("next", "/"))
    try:
        if presented(key) is None:
            raise Unauthenticated("That is no API key: they look like fair_abcd1234_….")
        caller = current_services().visitors.of_key(key)
    except Unauthenticated as error:
        page = render_template("console/sign-in.html", next=target, refused=error.detail)
        return Response(page, HTTPStatus.UNAUTHORIZED, content_type="text/html; charset=utf-8")
    if caller.tenant is None:
        cookie, target = OPERATOR_COOKIE, "/" if target.startswith("/tenant") else target
    else:
        cookie, target = TENANT_COOKIE, target if target.startswith("/tenant") else "/tenant"
    response = redirect(target, HTTPStatus.SEE_OTHER)
    # A proxy may have taken the encryption off; the browser knows what it sees.
    secure = request.is_secure or request.headers.get("Origin", "").startswith("https://")
    response.set_cookie(cookie, key, httponly=True, samesite="Lax", secure=secure)
    return response


@shell.post("/console/sign-out")
@open_to(Access.PUBLIC)
def post_sign_out() -> AnyResponse:
    """Forget the keys."""
    refuse_other_sites()
    response = redirect("/console/sign-in", HTTPStatus.SEE_OTHER)
    for cookie in (OPERATOR_COOKIE, TENANT_COOKIE):
        response.delete_cookie(cookie)
    return response


def refuse_other_sites() -> None:
    """Signing in and out is open to everybody, but only from a page of ours."""
    if not is_same_origin(request.environ):
        raise Forbidden("This was sent from a page of another site.")


# Staying up to date.


@shell.get("/console/events")
@open_to(Access.CONSOLE)
def get_console_events() -> Response:
    """What changes on a page of the console."""
    environ = request.environ
    visitors = current_services().visitors
    return follow(Access.CONSOLE, lambda: visitors.operator(environ))


@shell.get("/tenant/events")
@open_to(Access.TENANT_PAGE)
def get_tenant_events() -> Response:
    """What changes on a tenant's page."""
    environ = request.environ
    visitors = current_services().visitors
    return follow(Access.TENANT_PAGE, lambda: visitors.tenant(environ))


def follow(access: Access, recognise: Any) -> Response:
    """The stream of the page that ``page`` names."""
    page, asked = find_page(request.args.get("page", "/"), access)
    stage: Stage = current_app.extensions["fairline_stage"]
    wire = request.environ.get("gunicorn.socket")

    def allowed() -> bool:
        if has_left(wire):
            return False
        try:
            recognise()
        except (Unauthenticated, Forbidden):
            return False
        except StateStoreError:
            return True  # who was let in stays in while nobody can be asked
        return True

    if request.method == "HEAD":  # a viewer who never looks would never leave
        return event_stream(iter(()))
    prepare(wire)
    return event_stream(stage.watch(page, asked, allowed))


def find_page(url: str, access: Access) -> tuple[LivePage, PageRequest]:
    """The page at an address, if its visitors may be told of it here."""
    parts = urlsplit(local(url, "/console/nowhere"))
    try:
        endpoint, values = current_app.url_map.bind("").match(parts.path)
    except HTTPException:
        raise NotFound from None
    page: LivePage | None = current_app.extensions[PAGES].get(endpoint)
    if page is None or page.access is not access:
        raise NotFound
    if access is Access.TENANT_PAGE:
        # They take no query; each address that differs would be looked at by itself.
        tenant = current_services().visitors.tenant(request.environ)
        return page, PageRequest(parts.path, values, MultiDict(), tenant)
    args = MultiDict(parse_qsl(parts.query, keep_blank_values=True))
    refuse_nul_in(args)
    return page, PageRequest(url, values, args)


# Errors.


@shell.get("/console/<path:rest>")
@open_to(Access.CONSOLE)
def get_nothing(rest: str) -> Response:
    raise NotFound


def is_of_console() -> bool:
    """Whether the address is one that people look at."""
    view = current_app.view_functions.get(request.endpoint or "")
    return request.path.startswith("/console") or access_of(view) in PAGE_ACCESS


def answer_error(error: Exception) -> Any:
    """A page for people, a problem document for programs."""
    answer = problem_of(error)
    if (
        not (is_of_console() and asks_for_page(request.environ))
        or answer.status_code < HTTPStatus.BAD_REQUEST
    ):
        return answer
    if answer.status_code == HTTPStatus.UNAUTHORIZED:
        target = quote(request.full_path.rstrip("?") if request.method == "GET" else "/")
        response = redirect(f"/console/sign-in?next={target}", HTTPStatus.SEE_OTHER)
        if cookie_here() in request.cookies:  # its key opens nothing any more
            response.delete_cookie(cookie_here())
        return response
    problem = answer.get_json(force=True)
    title = TITLES.get(answer.status_code, problem["title"])
    fields = problem.get("errors", ())
    page = render_template("console/error.html", title=title, problem=problem, fields=fields)
    return Response(page, answer.status_code, content_type="text/html; charset=utf-8")
