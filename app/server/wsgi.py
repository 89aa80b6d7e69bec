"""The WSGI application: four hot routes bypass Flask's dispatch.

Flask's routing, contexts, hooks and signals cost about as much as the rest of a submission. The
functions behind these routes need none of it, so they are called with the WSGI environment; Flask
dispatches all other requests. ``access.authorize`` checks both.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from flask import Flask, request

from app.api.auth.access import Access, authorize
from app.api.http.problems import problem_of
from app.api.http.state import repeats_on_primary
from app.api.routes.applications import read_application, submit_application
from app.api.routes.jobs import read_job, submit_job
from app.errors import TenantMoved
from app.log_ids import MOVED, current_request
from app.tenants.scopes import Scope
from models.jobs.ids import ID_CHARACTERS
from models.store.errors import StateStoreError
from models.store.roles import set_tenant

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment
    from flask.typing import ResponseReturnValue
    from werkzeug.exceptions import HTTPException

    from app.telemetry.requests import Requests

#: Submissions, by path.
POSTS = {"/applications": submit_application, "/jobs": submit_job}
#: Polls, by the path before the id.
READS = {"/applications/": read_application, "/jobs/": read_job}
TO_POST, TO_READ = frozenset({Scope.SUBMIT}), frozenset({Scope.READ})


class FairlineApp(Flask):
    """Fairline's Flask application."""

    #: Set if requests are traced.
    traced: Requests | None = None

    def wsgi_app(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        current_request.set(environ)
        try:
            if self.traced is not None:
                return self.traced.answer(environ, start_response, self.answer)
            return self.answer(environ, start_response)
        finally:
            set_tenant(None)  # as ``authorize`` set it

    def dispatch_request(self) -> ResponseReturnValue:
        """Call the view; once more if a read from the standby failed, now on the primary."""
        try:
            return super().dispatch_request()
        except StateStoreError:
            if not repeats_on_primary():
                raise
            return super().dispatch_request()

    def handle_user_exception(self, e: Exception) -> HTTPException | ResponseReturnValue:
        """As in Flask; refusals are counted."""
        self.extensions["fairline"].refused.note(e, request.environ)
        note_moved(e, request.environ)
        return super().handle_user_exception(e)

    def answer(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        """Call the function of a hot route; Flask handles the others."""
        path, method = environ["PATH_INFO"], environ["REQUEST_METHOD"]
        services = self.extensions["fairline"]
        reply: Any
        try:
            if method == "POST" and path in POSTS:
                authorize(services, environ, Access.TENANT, TO_POST, counted=False)
                reply = POSTS[path](services, environ)
            elif method in ("GET", "HEAD") and path[:-ID_CHARACTERS] in READS:
                authorize(services, environ, Access.TENANT, TO_READ)
                reply = READS[path[:-ID_CHARACTERS]](services, environ, path[-ID_CHARACTERS:])
            else:
                return super().wsgi_app(environ, start_response)
        except Exception as error:  # noqa: BLE001 - as in Flask: every error is an answer
            services.refused.note(error, environ)
            note_moved(error, environ)
            reply = problem_of(error)
        answer: Iterable[bytes] = reply(environ, start_response)
        return answer


def note_moved(error: Exception, environ: WSGIEnvironment) -> None:
    """Tell the router, if there is one, that the request belongs into another cell."""
    if isinstance(error, TenantMoved):
        environ[MOVED] = True
