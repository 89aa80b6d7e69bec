"""Who may use Flower: without a login, direct requests from this machine only.

Flower shows payloads and can shut workers down. Where neither ``basic_auth`` nor ``auth`` is set it
listens on loopback, and answers as the API does to callers without a key
(:mod:`app.policy.local_callers`). Flower reads ``flowerconfig.py`` when it starts, and that calls
``protect_flower``.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import flower.app  # type: ignore[import-untyped]  # no types
from tornado.httputil import HTTPServerRequest
from tornado.options import options
from tornado.web import RequestHandler

from app.policy.local_callers import is_loopback, why_not_local
from models.secret_files import read_secret

LOOPBACK = "127.0.0.1"
#: Says that the process is alive, and nothing else.
HEALTH = "/healthcheck"


class RefusedRequest(RequestHandler):
    """The answer to a request that needs a login where there is none."""

    def initialize(self, reason: str) -> None:
        self._why = reason

    def prepare(self) -> None:
        self.set_status(HTTPStatus.FORBIDDEN)
        self.set_header("Content-Type", "text/plain; charset=UTF-8")
        self.finish(
            "Without a login Flower answers direct requests from this machine only, such as to"
            f" http://localhost; this one is not: {self._why}. Start it with"
            " FLOWER_BASIC_AUTH=user:password to have a login.\n"
        )


class ProtectedFlower(flower.app.Flower):  # type: ignore[misc]  # no types
    """Flower, closed to other machines unless it has a login."""

    def start_http_server(self) -> Any:
        options = self.options
        if not has_login(options) and not options.unix_socket:
            # Flower's own default is every address.
            options.address = options.address or LOOPBACK
            if not is_loopback(options.address):
                raise SystemExit(
                    f"fairline: Flower would listen on {options.address}, where other machines"
                    " reach it, and anybody could shut workers down. Set"
                    " FLOWER_BASIC_AUTH=user:password, or --address=127.0.0.1."
                )
        return super().start_http_server()

    def find_handler(self, request: HTTPServerRequest, **kwargs: Any) -> Any:
        open_to_all = has_login(self.options) or request.path.endswith(HEALTH)
        if not open_to_all and (reason := why_not_local(wsgi_names(request))):
            return self.get_handler_delegate(request, RefusedRequest, {"reason": reason})
        return super().find_handler(request, **kwargs)


def has_login(options: Any) -> bool:
    """Whether Flower asks for a password, or for an account elsewhere."""
    return bool(options.basic_auth or options.auth)


def wsgi_names(request: HTTPServerRequest) -> dict[str, Any]:
    """The address, protocol and headers of a request, as WSGI names them."""
    headers = {f"HTTP_{name.upper().replace('-', '_')}": v for name, v in request.headers.items()}
    return {"REMOTE_ADDR": request.remote_ip, "SERVER_PROTOCOL": request.version, **headers}


def read_secret_options() -> None:
    """Take options with passwords from files unless they are set: see `models.secret_files`."""
    if not options.basic_auth and (logins := read_secret("FLOWER_BASIC_AUTH")):
        options.basic_auth = logins.split(",")
    if not options.broker_api and (url := read_secret("FLOWER_BROKER_API")):
        options.broker_api = url


def protect_flower() -> None:
    """Let ``celery flower`` start the protected one."""
    import flower.command  # type: ignore[import-untyped]  # no types

    flower.command.Flower = ProtectedFlower
