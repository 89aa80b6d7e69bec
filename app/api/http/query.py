"""Path and query parameters: validation, opaque cursors and links to the next page."""

from __future__ import annotations

import base64
import re
from collections.abc import Callable, Collection, Mapping
from typing import TypeVar
from urllib.parse import urlencode

from flask import request

from app.errors import NotFound, ValidationFailed, invalid_field
from models.jobs.ids import parse_id
from tasks.registry import NAME

Position = TypeVar("Position")

LIMIT = re.compile(r"\d{1,6}", re.ASCII)
PARTIAL_VALUES = ("true", "false")


def known_id(text: str, missing: str = "") -> str:
    """The id in a path, in canonical form; an invalid one is a 404, with that message."""
    found = parse_id(text)
    if found is None:
        raise NotFound(missing)
    return found


def parse_limit(usual: int, most: int) -> int:
    """``limit``: the page size."""
    text = request.args.get("limit", str(usual))
    if not (LIMIT.fullmatch(text) and 0 < int(text) <= most):
        raise invalid_field("limit", f"must be between 1 and {most}")
    return int(text)


def parse_choice(field: str, choices: Collection[str]) -> str | None:
    """A parameter with a closed set of values."""
    text = request.args.get(field)
    if text is not None and text not in choices:
        raise invalid_field(field, f"must be one of {', '.join(choices)}")
    return text


def parse_partial() -> None:
    """``partial``: whether a list may be without what is in a cell that does not respond.

    One cell has all of its list: what asks several of them reads the parameter.
    """
    parse_choice("partial", PARTIAL_VALUES)


def parse_name(field: str) -> str | None:
    """The name of a job type or pool; one that no longer exists may still have jobs."""
    text = request.args.get(field)
    if text is not None and not NAME.fullmatch(text):
        raise invalid_field(field, "is not a valid name")
    return text


def parse_cursor(read: Callable[[str], Position | None]) -> Position | None:
    """``cursor``: where the previous page ended; ``read`` returns None for an invalid one."""
    text = request.args.get("cursor")
    if text is None:
        return None
    found = read(unpack_cursor(text))
    if found is None:
        raise bad_cursor()
    return found


def pack_cursor(text: str) -> str:
    """A position as an opaque cursor."""
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def unpack_cursor(text: str) -> str:
    """The position in a cursor."""
    try:
        padded = text + "=" * (-len(text) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise bad_cursor() from None


def bad_cursor() -> ValidationFailed:
    """The error for a cursor that the server did not issue."""
    return invalid_field("cursor", "was not issued by this server")


def next_link(limit: int, cursor: str | None, **parameters: str) -> dict[str, str]:
    """The ``Link`` header to the next page: this query, continued after ``cursor`` if any."""
    if cursor is None:
        return {}
    query = {**request.args, **parameters, "limit": limit, "cursor": pack_cursor(cursor)}
    return link_to(request.path, query)


def link_to(path: str, query: Mapping[str, object]) -> dict[str, str]:
    """The ``Link`` header to a next page."""
    return {"Link": f'<{path}?{urlencode(query)}>; rel="next"'}
