"""``GET /openapi.json``, and the check that a query holds nothing that is not declared."""

from __future__ import annotations

import hashlib
from functools import cached_property

import gevent
import orjson
from flask import Blueprint, Flask, Response, current_app, request

from app.api.auth.access import Access, access_of, open_to
from app.api.auth.visitors import asks_for_page
from app.api.http.query import refuse_parameters_besides
from app.api.openapi.declared import DeclaredResponse, described, operation_of
from app.api.openapi.document import build_document, find_routes
from app.api.openapi.parts import ETAG, IF_NONE_MATCH
from app.api.services import Services

openapi = Blueprint("openapi", __name__)

EXTENSION = "fairline_openapi"


class Published:
    """The document of one application, put together when it is first asked for."""

    def __init__(self, app: Flask, *, anonymous: bool) -> None:
        services: Services = app.extensions["fairline"]
        self._types = tuple(services.types)
        self._anonymous = anonymous
        #: Found at once: an application with a route that declares nothing is not built.
        self._routes = find_routes(app)

    @cached_property
    def body(self) -> bytes:
        """The document as it is sent. It takes a while, in a thread beside the loop."""
        made: bytes = gevent.get_hub().threadpool.apply(self._make)
        return made

    def _make(self) -> bytes:
        return orjson.dumps(build_document(self._routes, self._types, anonymous=self._anonymous))

    @cached_property
    def etag(self) -> str:
        """Another one if the document is."""
        return hashlib.blake2b(self.body, digest_size=9).hexdigest()


def publish(app: Flask, *, anonymous: bool) -> None:
    """Describe the application and hold callers to it; comes after all routes and ``guard``."""
    app.extensions[EXTENSION] = Published(app, anonymous=anonymous)
    app.before_request(refuse_undeclared_parameters)


def refuse_undeclared_parameters() -> None:
    """Runs before each request that Flask answers, once the caller has passed."""
    if request.endpoint is None or not request.args:
        return
    view = current_app.view_functions.get(request.endpoint)
    operation = operation_of(view)
    if operation is None or operation.query_names is None:
        return
    if access_of(view) is Access.TENANT_PAGE and asks_for_page(request.environ):
        return  # the page at the same address has its own
    refuse_parameters_besides(operation.query_names)


@openapi.get("/openapi.json")
@open_to(Access.PUBLIC)
@described(
    "This document",
    DeclaredResponse(200, "The API in OpenAPI 3.1.", {"type": "object"}, (ETAG,)),
    DeclaredResponse(304, "It is as you know it.", headers=(ETAG,)),
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
