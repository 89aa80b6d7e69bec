"""``GET /openapi.json``, and the check that rejects undeclared query parameters."""

from __future__ import annotations

from functools import cache, partial

import gevent
import orjson
from flask import Blueprint, Flask, Response, current_app, request

from app.api.auth.access import Access
from app.api.auth.visitors import asks_for_page
from app.api.openapi import declared
from app.api.openapi.declared import ETAG, Returns, operation_of
from app.api.openapi.document import build_document, find_routes
from app.errors import ValidationFailed, field_error
from tasks.errors_of_schema import MOST_ERRORS

openapi = Blueprint("openapi", __name__)

EXTENSION = "fairline_openapi"


def publish(app: Flask, *, anonymous: bool) -> None:
    """Publish the document and enforce it; call it after all routes and ``guard``."""
    types = tuple(app.extensions["fairline"].types)
    # The routes are found now: an application with an undeclared one is not built.
    build = partial(build_document, find_routes(app), types, anonymous=anonymous)

    @cache
    def published() -> bytes:
        # Building takes a while, so a thread does it, not the loop.
        return orjson.dumps(gevent.get_hub().threadpool.apply(build))

    app.extensions[EXTENSION] = published
    app.before_request(refuse_undeclared_parameters)


def refuse_undeclared_parameters() -> None:
    """Runs before each request that Flask handles, after the access check.

    Unknown parameters are errors: a misspelled filter would filter nothing.
    """
    if request.endpoint is None or not request.args:
        return
    view = current_app.view_functions.get(request.endpoint)
    operation = operation_of(view)
    if operation is None or operation.query is None:
        return
    if operation.access is Access.TENANT_PAGE and asks_for_page(request.environ):
        return  # the page at the same path has other parameters
    unknown = sorted(set(request.args) - {parameter.name for parameter in operation.query})
    if unknown:
        listed = tuple(field_error(name, "is not a parameter") for name in unknown[:MOST_ERRORS])
        raise ValidationFailed(errors=listed, total=len(unknown))


@openapi.get("/openapi.json")
@declared.for_anyone(
    "This document",
    Returns(200, {"type": "object"}, (ETAG,), "The API in OpenAPI 3.1."),
    also=(declared.unchanged(),),
    headers=(declared.IF_NONE_MATCH,),
    query=None,
)
def get_openapi() -> Response:
    response = Response(current_app.extensions[EXTENSION](), content_type="application/json")
    response.add_etag()
    response.headers["Cache-Control"] = "no-cache"
    response.make_conditional(request.environ)
    return response
