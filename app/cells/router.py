"""Router: the WSGI application in front of those of all cells.

It finds the caller's tenant and where that lives, and calls the application of the right cell. That
one checks the key and does everything else; routes know nothing of cells. Keyless calls go to
where the tenant lives that they act as. Sessions and operators belong to the home cell, that of the
process's own database, unless an operator names another one by ``?cell=``, ``Fairline-Cell`` or a
cookie.

A tenant of several cells gets merged answers (:mod:`app.cells.merged_routes`); a submission goes
whole to one of them. A cell that refuses one because the tenant was moved (``MOVED``) inserted
nothing: the placement is read again, and the request sent to where the tenant lives now.

Callers of a cell that is away get 503 at once; those of other cells wait for nothing of it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from contextlib import suppress
from functools import partial
from http import HTTPStatus
from typing import TYPE_CHECKING

from app.api.auth.access import Access, access_of
from app.api.auth.visitors import TENANT_COOKIE, cookie_of, session_of
from app.api.http.complete_body import CompleteBody
from app.cells import merged_routes, new_tenants, operator_routes
from app.cells.fan_out import BegunResponse, begin, query_of, with_query
from app.cells.forwarding import (
    CELL_COOKIE,
    SUBMISSIONS,
    KeptInput,
    again,
    away,
    cell_for,
    first_part,
    refuse,
    shown_cell,
    token_of,
    with_cookie,
)
from app.cells.health import CellHealth
from app.cells.key_lookup import KeyLookup
from app.cells.left_tenants import MOVE_SECONDS, answer_again_if_moved, look_again, unless_moved
from app.cells.registry_cache import RegistryCache
from app.errors import CellUnavailable, NotFound, Unauthenticated
from app.log_ids import CALLER, MOVED, PLACEMENT, SENT_AGAIN
from app.policy.placement import Placement
from models.store.errors import StateStoreError

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from flask import Flask

    from app.cells.copied_callers import CopiedCallers
    from app.cells.region_intake import RegionIntake
    from app.cells.served_cells import ServedCells
    from app.config import Settings

logger = logging.getLogger(__name__)

NOT_LOADED = "The registry of cells is not responding. Please try again."
#: By which an operator names a cell, besides a cookie.
CELL_HEADER = "HTTP_FAIRLINE_CELL"
#: In the environ: a cell did not say in time whose key it is, a copy did.
COPIED = "fairline.copied"


class CellRouter:
    """Calls the application of the caller's cell."""

    #: Set by whoever builds it; None: no cell takes in for others.
    region: RegionIntake | None = None
    #: Where tenants of cells that are away are known from.
    copies: CopiedCallers | None = None
    served: ServedCells
    health: CellHealth

    def __init__(self, settings: Settings, cache: RegistryCache) -> None:
        """``serve`` has to follow: the applications find callers by ``keys``."""
        self.settings = settings
        self.cache = cache
        self.keys = KeyLookup(self, settings.admission_seconds)
        self._anonymous = settings.anonymous_tenant
        #: First parts of the paths that tenants call; those of pages are among them.
        self._of_tenants: frozenset[str] = frozenset()

    def serve(self, served: ServedCells) -> None:
        """Call the applications of these cells from now on."""
        self.served = served
        self.health = CellHealth(served.probe)
        views, tenants = served.home.view_functions, (Access.TENANT, Access.TENANT_PAGE)
        self._of_tenants = frozenset(
            first_part(rule.rule)
            for rule in served.home.url_map.iter_rules()
            if access_of(views[rule.endpoint]) in tenants
        )
        self.cache.on_refresh = lambda: served.update(self.cache.cells)

    def begin_serving(self) -> None:
        """Start the threads of an API process, for all cells."""
        try:
            self.cache.refresh()
        except StateStoreError as error:
            logger.warning("no cell is known until the registry answers: %s", error)
        self.served.begin_serving()
        self.cache.start()

    def end_serving(self) -> None:
        """Stop them, and write what still waits."""
        self.cache.close()
        self.health.close()
        if self.region is not None:
            self.region.close(1.0)
        self.served.end_serving()

    # What those who ask several cells need: :class:`app.cells.fan_out.ServedApps`.

    @property
    def home(self) -> Flask:
        """The application of the home cell."""
        return self.served.home

    def app_of(self, cell: str) -> Flask | None:
        """The application of a cell; None if there is no such cell, or it cannot be served."""
        return self.served.app_of(cell) if cell else self.served.home

    def is_away(self, cell: str) -> bool:
        """Whether a cell did not answer lately."""
        return self.health.is_away(cell)

    def suspect(self, cell: str) -> None:
        """A cell seems not to answer: find out."""
        self.health.suspect(cell)

    def cell_numbered(self, number: int) -> str | None:
        """The name of the cell of this number."""
        return self.served.numbered(number)

    def cell_names(self) -> Sequence[str]:
        """All cells, by number."""
        return self.served.names()

    def placement_of(self, tenant: str) -> Placement | None:
        """Where the tenant of this name lives."""
        return self.cache.placement_of(tenant)

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        return self.wsgi_app(environ, start_response)

    def wsgi_app(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Answer a request. Something may be put in front of it, as of Flask's."""
        try:
            tenant, cell = self._tenant_of(environ)
            if tenant is None:
                return self._of_operator(cell, environ, start_response)
            return self._of_tenant(tenant, cell, environ, start_response)
        except Exception as error:  # noqa: BLE001 - as in Flask: every error is an answer
            return refuse(error, environ, start_response)

    def _of_tenant(
        self, tenant: str, cell: str, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer a tenant; ``cell``: which knows it, if the registry does not yet."""
        if not self.cache.loaded:
            raise CellUnavailable(NOT_LOADED)
        placement = self.cache.placement_of(tenant) or Placement(0, {cell: 1.0})
        if environ["REQUEST_METHOD"] == "POST" and environ["PATH_INFO"] in SUBMISSIONS:
            return self._submit(tenant, placement, environ, start_response)
        answer = partial(self._answer, tenant, cell)
        return answer_again_if_moved(
            self, self.cache, tenant, placement, answer, environ, start_response
        )

    def _answer(
        self,
        tenant: str,
        cell: str,
        placement: Placement,
        environ: WSGIEnvironment,
        start_response: StartResponse,
    ) -> Iterable[bytes]:
        """Answer what is no submission, by this placement."""
        # Positions of events name their cell: the tenant may live elsewhere when it comes back.
        if len(placement.weights) > 1 or (environ["PATH_INFO"] == "/events" and cell):
            answer = partial(merged_routes.answer, self, placement)
            if self.region is not None:
                return self.region.merged(answer, environ, placement)(environ, start_response)
            return answer(environ, start_response)
        return self._read(tenant, placement, environ, start_response)

    def _tenant_of(self, environ: WSGIEnvironment) -> tuple[str | None, str]:
        """The caller's tenant, None if it is none, and the cell that knows the caller."""
        authorization = environ.get("HTTP_AUTHORIZATION")
        home = self.served.home_cell or ""
        if authorization is not None:
            try:
                found = self.keys.find(authorization)
            except (CellUnavailable, StateStoreError):
                return self._copied(authorization, environ)
            if found is None:
                if not self.cache.loaded:
                    raise CellUnavailable(NOT_LOADED)
                return None, home
            if found.tenant is None:
                # An operator of the home cell is one of all cells, of which others know nothing;
                # one of another cell is its own alone.
                with suppress(Unauthenticated):
                    environ[CALLER] = self.keys.caller(authorization)
            return found.tenant, found.cell
        if first_part(environ["PATH_INFO"]) not in self._of_tenants:
            return None, home
        token = session_of(environ, TENANT_COOKIE)
        if token and environ["PATH_INFO"].startswith("/tenant"):
            return self._signed_in(token), home
        return self._anonymous or None, home

    def _copied(self, authorization: str, environ: WSGIEnvironment) -> tuple[str, str]:
        """The tenant of a key that only a cell that is away knows."""
        found = None if self.copies is None else self.copies.find(authorization)
        if found is None or found.caller.tenant is None:
            raise CellUnavailable
        environ[COPIED] = True
        return found.caller.tenant.name, found.cell

    def _signed_in(self, token: str) -> str | None:
        """The tenant of a session, which is a row of the home cell's."""
        try:
            caller = self.home.extensions["fairline"].sessions.caller(token, used=False)
        except Unauthenticated:
            return self._anonymous or None
        return None if caller.tenant is None else caller.tenant.name

    def _of_operator(
        self, own: str, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer a call that is no tenant's: by its own cell, or the one that it names."""
        named = query_of(environ).get("cell") or environ.get(CELL_HEADER)
        shown = shown_cell(environ)
        for given in (named, shown):
            if given is not None and self.app_of(given) is None:
                raise NotFound(f"There is no cell {given[:40]!r}.")
        if named is not None and "cell" in query_of(environ):
            environ.update(with_query(environ, cell=None))
            start_response = with_cookie(environ, start_response, named)
        if self.cell_names() and self.app_of(own) is self.home:
            if new_tenants.creates_tenant(environ):
                registry = self.cache.registry
                return new_tenants.create(self, registry, environ, start_response, named)
            merged = None if named else operator_routes.answer(self, environ, start_response)
            if merged is not None:
                return merged
        cell = named or shown or cookie_of(environ, CELL_COOKIE) or own
        app = self.app_of(cell) or self.home  # a cookie may be old
        if app is not self.home and self.is_away(cell):
            raise away(cell)
        return self._called(cell, app, environ)(environ, start_response)

    def _read(
        self,
        tenant: str,
        placement: Placement,
        environ: WSGIEnvironment,
        start_response: StartResponse,
    ) -> Iterable[bytes]:
        """Answer a request of a tenant that lives in one cell."""
        [cell] = placement.weights
        app = self._there(cell, environ)
        if app is None:
            return self._without(tenant, cell, environ, start_response)
        response = self._begin(cell, app, environ, tenant, placement)
        if response.status == HTTPStatus.NOT_FOUND and self.region is not None:
            kept = self.region.find(environ, placement)
            if kept is not None:
                response.close()
                return kept(environ, start_response)
        return response(environ, start_response)

    def _there(self, cell: str, environ: WSGIEnvironment) -> Flask | None:
        """The application of a cell, unless it is away or the caller has waited for it already."""
        waited = COPIED in environ and self.health.is_suspected(cell)
        return None if waited or self.is_away(cell) else self.app_of(cell)

    def _called(self, cell: str, app: Flask, environ: WSGIEnvironment) -> BegunResponse:
        """Call the application of a cell; its response, which is not sent yet."""
        response = begin(app, environ)
        if response.status == HTTPStatus.SERVICE_UNAVAILABLE and MOVED not in environ:
            self.health.suspect(cell)
        return response

    def _begin(
        self, cell: str, app: Flask, environ: WSGIEnvironment, tenant: str, placement: Placement
    ) -> BegunResponse:
        """The same for a tenant, which may have left the cell."""
        response = self._called(cell, app, environ)
        if response.status == HTTPStatus.UNAUTHORIZED and self.keys.has_left(app, environ):
            return unless_moved(self.cache, tenant, placement, environ, response)
        return response

    def _submit(
        self,
        tenant: str,
        placement: Placement,
        environ: WSGIEnvironment,
        start_response: StartResponse,
    ) -> Iterable[bytes]:
        """Admit in one of the tenant's cells; in another one if it was moved meanwhile."""
        body = environ["wsgi.input"]
        if not isinstance(body, CompleteBody):
            body = environ["wsgi.input"] = KeptInput(body, self.settings.max_body_bytes)
        token, keyed = token_of(environ)
        deadline = time.monotonic() + MOVE_SECONDS
        while True:
            cell = cell_for(self, placement, token, keyed=keyed)
            app = self._there(cell, environ)
            if app is None:
                return self._without(tenant, cell, environ, start_response)
            environ[PLACEMENT] = placement.version
            response = self._begin(cell, app, environ, tenant, placement)
            if not environ.pop(MOVED, False) or time.monotonic() >= deadline:
                if isinstance(body, KeptInput):
                    body.forget()
                return response(environ, start_response)
            response.close()
            placement = look_again(self.cache, tenant, placement)
            # Each application finds out by itself who calls.
            environ.pop(CALLER, None)
            environ["wsgi.input"], environ[SENT_AGAIN] = again(body), True

    def _without(
        self, tenant: str, cell: str, environ: WSGIEnvironment, start_response: StartResponse
    ) -> Iterable[bytes]:
        """Answer for a cell that is away."""
        kept = None if self.region is None else self.region.answer(environ, tenant, cell)
        if kept is not None:
            return kept(environ, start_response)
        return refuse(away(cell), environ, start_response)
