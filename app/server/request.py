"""Parses a plain HTTP request into a WSGI environment with as little work as possible.

Plain is HTTP/1.1 with an origin path, a Host, each header once, a length or no body. For any other
request the result is None, and gunicorn parses or rejects it. A test compares the two parsers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from gunicorn import util
from gunicorn.http.message import TOKEN_RE

#: A method, a path from the root and perhaps a query, without a fragment.
PLAIN_REQUEST_LINE = re.compile(r"([A-Z]{3,20}) (/[!\"$-~]*) HTTP/1\.1")
#: Headers that change how a request is framed or answered.
NOT_PLAIN = frozenset({"TRANSFER-ENCODING", "EXPECT", "UPGRADE", "TE", "TRAILER"})
#: Most digits of a Content-Length.
MOST_DIGITS = 15
#: Most header names that are cached, and their length; clients may invent more.
MOST_NAMES = 1_000
MOST_NAME = 40

#: Environment keys by header name as spelled.
_keys: dict[str, str] = {}


@dataclass(frozen=True, slots=True)
class HeadLimits:
    """gunicorn's limits of a request head; it rejects requests that exceed them."""

    line_bytes: int
    fields: int
    field_bytes: int


class PlainRequest(NamedTuple):
    """A parsed head."""

    environ: dict[str, Any]
    #: Where the body begins, and how long it is.
    body_at: int
    length: int
    #: The client wants the connection closed after the answer.
    last: bool


def read_plain(
    data: bytes, base_environ: Mapping[str, Any], limits: HeadLimits, schemes: Mapping[str, str]
) -> PlainRequest | None:
    """The request at the start of ``data``, if it is plain and its head is complete.

    ``base_environ``: the environment shared by all requests of the connection; ``schemes``:
    headers by which a trusted proxy announces ``https``, with the value that does.
    """
    end = data.find(b"\r\n\r\n")
    # If the whole head fits the limit for one header, no single header can exceed it.
    if not 0 <= end <= limits.field_bytes:
        return None
    lines = str(data[:end], "latin-1").split("\r\n")
    first = PLAIN_REQUEST_LINE.fullmatch(lines[0])
    if first is None or len(lines[0]) > limits.line_bytes or len(lines) > limits.fields + 1:
        return None
    # Control characters (also tabs and bare line breaks) are left to gunicorn, and so are headers
    # in UTF-8, some of whose bytes look like control characters.
    if not "".join(lines).isprintable():
        return None
    environ = dict(base_environ)
    for line in lines[1:]:
        name, colon, value = line.partition(":")
        if not colon:
            return None
        key = _keys.get(name)
        if key is None:
            key = environ_key(name)
        if not key or key in environ:
            return None
        environ[key] = value.strip(" ")
    if "HTTP_HOST" not in environ:
        return None
    length = 0
    announced = environ.get("CONTENT_LENGTH")
    if announced is not None:
        if not (announced.isascii() and announced.isdigit() and len(announced) <= MOST_DIGITS):
            return None
        length = int(announced)
    last = False
    connection = environ.get("HTTP_CONNECTION")
    if connection is not None:
        connection = connection.lower()
        last = connection == "close"
        if not last and connection != "keep-alive":
            return None
    if not set_scheme(environ, schemes):
        return None
    method, uri = first.groups()
    if method == "CONNECT":
        return None
    path, _, query = uri.partition("?")
    environ["REQUEST_METHOD"] = method
    environ["RAW_URI"] = uri
    environ["PATH_INFO"] = util.unquote_to_wsgi_str(path) if "%" in path else path
    environ["QUERY_STRING"] = query
    return PlainRequest(environ, end + 4, length, last)


def environ_key(name: str) -> str:
    """The key of a header in the environment; empty if it is not plain."""
    upper = name.upper()
    # The name of a folded line begins with a space. An underscore would be taken for a hyphen.
    if not TOKEN_RE.fullmatch(name) or "_" in upper or upper in NOT_PLAIN:
        key = ""
    elif upper in ("CONTENT-TYPE", "CONTENT-LENGTH"):
        key = upper.replace("-", "_")
    else:
        key = "HTTP_" + upper.replace("-", "_")
    if key and len(name) <= MOST_NAME and len(_keys) < MOST_NAMES:
        _keys[name] = key
    return key


def set_scheme(environ: dict[str, Any], schemes: Mapping[str, str]) -> bool:
    """Set the scheme that a proxy announced; False if there are two."""
    said = False
    for key, secure in schemes.items():
        if key in environ:
            if said:
                return False
            said = True
            environ["wsgi.url_scheme"] = "https" if environ[key] == secure else "http"
    return True
