"""``Idempotency-Key``: makes a submission safe to repeat.

A key belongs to its tenant and to one request: the same method, path and body, however the
JSON is formatted. It is valid as long as its row is kept (a day unless configured otherwise).
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

from app.admission import IdempotencyKey
from app.api.http.body import JsonDocument
from app.errors import invalid_field

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

HEADER = "Idempotency-Key"
#: The header in the WSGI environment.
ENVIRON_KEY = "HTTP_IDEMPOTENCY_KEY"

PRINTABLE = re.compile(r"[ -~]{1,255}")


def parse_key(
    environ: WSGIEnvironment, document: JsonDocument, reading: str = ""
) -> IdempotencyKey | None:
    """The key of a request, if it has one.

    ``reading`` describes how the body was interpreted, where that depends on the deployment.
    """
    text = environ.get(ENVIRON_KEY)
    if text is None:
        return None
    if not PRINTABLE.fullmatch(text):
        raise invalid_field(HEADER, "must have 1 to 255 printable ASCII characters")
    return IdempotencyKey(text, digest_of(environ, document, reading))


def digest_of(environ: WSGIEnvironment, document: JsonDocument, reading: str) -> bytes:
    """Distinguishes a repeated request from a different one.

    The body is parsed by Python's ``json``: orjson would turn two different integers beyond 64
    bits into the same float. It has passed the schema, so its depth is bounded.
    """
    canonical = json.dumps(json.loads(document.raw), sort_keys=True, separators=(",", ":"))
    request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}\n{canonical}\n{reading}"
    return hashlib.blake2b(request.encode(), digest_size=32).digest()
