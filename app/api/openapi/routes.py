"""``GET /openapi.json``, and the check that rejects undeclared query parameters."""

from __future__ import annotations

import hashlib
from functools import cached_property, partial

import gevent
import orjson
from flask import Blueprint, Flask, Response, current_app, request

from app.api.auth.access import Access
from app.api.auth.visitors import asks_for_page
from app.api.http.query import refuse_parameters_besides
from app.api.openapi.declared import (
    ETAG,
    IF_NONE_MATCH,
    Returns,
    for_anyone,
    operation_of,
    unchanged,
)
from app.api.openapi.document import build_document, find_routes

openapi = Blueprint("openapi", __name__)

EXTENSION = "fairline_openapi"


class Published:
    """The document of one application, built on first use."""

    def __init__(self, app: Flask, *, anonymous: bool) -> None:
        types = tuple(app.extensions["fairline"].types)
        # The routes are found now: an application with an undeclared one is not built.
        self._build = partial(build_document, find_routes(app), types, anonymous=anonymous)

    @cached_property
    def body(self) -> bytes:
        """The document as JSON. Building it takes a while, so a thread does it, not the loop."""
        return orjson.dumps(gevent.get_hub().threadpool.apply(self._build))

    @cached_property
    def etag(self) -> str:
        """Changes with the document."""
        return hashlib.blake2b(self.body, digest_size=9).hexdigest()


def publish(app: Flask, *, anonymous: bool) -> None:
    """Publish the document and enforce it; call it after all routes and ``guard``."""
    app.extensions[EXTENSION] = Published(app, anonymous=anonymous)
    app.before_request(refuse_undeclared_parameters)


def refuse_undeclared_parameters() -> None:
    """Runs before each request that Flask handles, after the access check."""
    if request.endpoint is None or not request.args:
        return
    view = current_app.view_functions.get(request.endpoint)
    operation = operation_of(view)
    if operation is None or operation.query is None:
        return
    if operation.access is Access.TENANT_PAGE and asks_for_page(request.environ):
        return  # the page at the same path has other parameters
    refuse_parameters_besides([parameter.name for parameter in operation.query])


@openapi.get("/openapi.json")
@for_anyone(
    "This document",
    Returns(200, {"type": "object"}, (ETAG,), "The API in OpenAPI 3.1."),
    also=(unchanged(),),
    headers=(IF_NONE_MATCH,),
    query=None,
)
def get_openapi() -> Response:
    published: Published = current_app.extensions[EXTENSION]
    response = Response(published.body, content_type="application/json")
    response.set_etag(published.etag)
    response.headers["Cache-Control"] = "no-cache"
    response.make_conditional(request.environ)
    return response
