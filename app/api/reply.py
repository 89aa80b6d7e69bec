"""The reply of the hot paths: headers go out as they were given.

Werkzeug's own would parse and rewrite ``Location`` for every reply; ours are paths already.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from flask import Response

if TYPE_CHECKING:
    from _typeshed.wsgi import StartResponse, WSGIEnvironment


class Reply(Response):
    """A small JSON document, complete in memory."""

    def __init__(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        super().__init__(body, status, headers, content_type="application/json")

    def __call__(self, environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
        start_response(self.status, self.headers.to_wsgi_list())
        return () if environ["REQUEST_METHOD"] == "HEAD" else self.response  # type: ignore[return-value]  # bytes were given
