"""``Idempotency-Key``: what makes a submission safe to repeat.

A key belongs to its tenant and to one request: the same method, path and body, however the
body is spelled. It holds as long as the row is kept (a day unless configured otherwise).
"""

from __future__ import annotations

import hashlib
import json
import re
from typing import TYPE_CHECKING

from app.admission import IdempotencyKey
from app.api.http.body import JsonDocument
from app.errors import FieldError, ValidationFailed

if TYPE_CHECKING:
    from _typeshed.wsgi import WSGIEnvironment

HEADER = "Idempotency-Key"
#: Header of a reply that was given before.
REPLAYED = "Idempotent-Replayed"
#: How the header arrives. Most requests have none, and look no further.
ENVIRON_KEY = "HTTP_IDEMPOTENCY_KEY"

PRINTABLE = re.compile(r"[ -~]{1,255}")


def parse_key(
    environ: WSGIEnvironment, document: JsonDocument, reading: str = ""
) -> IdempotencyKey | None:
    """The key of a request, if it has one.

    ``reading`` says how the body was read, where that may change from one day to the next.
    """
    text = environ.get(ENVIRON_KEY)
    if text is None:
        return None
    if not PRINTABLE.fullmatch(text):
        raise ValidationFailed(
            errors=(FieldError(HEADER, "must have 1 to 255 printable ASCII characters"),)
        )
    return IdempotencyKey(text, digest_of(environ, document, reading))


def digest_of(environ: WSGIEnvironment, document: JsonDocument, reading: str) -> bytes:
    """What tells a repetition from another request.

    The body is read by Python's parser: orjson's would take two different integers beyond 64
    bits for the same float. It has passed the schema, so its depth is bounded.
    """
    canonical = json.dumps(json.loads(document.raw), sort_keys=True, separators=(",", ":"))
    request = f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']}\n{canonical}\n{reading}"
    return hashlib.blake2b(request.encode(), digest_size=32).digest()
