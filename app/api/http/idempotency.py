"""``Idempotency-Key``: makes a submission safe to repeat.

The value is a structured-field string (draft-ietf-httpapi-idempotency-key-header, RFC 9651), and
what most clients send is the same without quotes: ``"k"`` and ``k`` are one key.

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
from app.log_ids import PLACEMENT
from models.jobs.submission import NO_PLACEMENT

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

HEADER = "Idempotency-Key"
#: The header in the WSGI environment.
ENVIRON_KEY = "HTTP_IDEMPOTENCY_KEY"

#: In quotes, where a quote and a backslash are escaped; or as it is.
KEY = re.compile(r'"(?:[ !#-[\]-~]|\\["\\]){1,255}"|[!#-~][ -~]{0,254}')
ESCAPED = re.compile(r'\\(["\\])')


def parse_key(
    environ: WSGIEnvironment, document: JsonDocument, reading: str = ""
) -> IdempotencyKey | None:
    """The key of a request, if it has one.

    ``reading`` describes how the body was interpreted, where that depends on the deployment.
    """
    text = environ.get(ENVIRON_KEY)
    if text is None:
        return None
    key = key_text(text)
    if key is None:
        wanted = "must be a structured-field string of 1 to 255 printable ASCII characters"
        raise invalid_field(HEADER, f'{wanted}, such as "8e03978e", or the same without quotes')
    placement = environ.get(PLACEMENT, NO_PLACEMENT)
    return IdempotencyKey(key, digest_of(environ, document, reading), placement)


def key_text(header: str) -> str | None:
    """The key that a header stands for; None if it is malformed."""
    if not KEY.fullmatch(header):
        return None
    return ESCAPED.sub(r"\1", header[1:-1]) if header.startswith('"') else header


def digest_of(environ: WSGIEnvironment, document: JsonDocument, reading: str) -> bytes:
    """Distinguishes a repeated request from a different one.

    The body is parsed by Python's ``json``: orjson would turn two different integers beyond 64
    bits into the same float. It has passed the schema, so its depth is bounded.
    """
    canonical = json.dumps(json.loads(document.raw), sort_keys=True, separators=(",", ":"))
    request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}\n{canonical}\n{reading}"
    return hashlib.blake2b(request.encode(), digest_size=32).digest()
