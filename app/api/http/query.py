"""Query parameters of the pages: known ones only, checked, and cursors nobody can read."""

from __future__ import annotations

import base64
import re
from collections.abc import Collection, Mapping
from urllib.parse import urlencode

from flask import request

from app.errors import FieldError, ValidationFailed
from app.field_errors import shortened
from models.jobs.ids import parse_id
from tasks.registry import NAME

LIMIT = re.compile(r"\d{1,6}", re.ASCII)


def refuse_parameters_besides(known: Collection[str]) -> None:
    """Unknown parameters are errors: a filter with a slip of the pen would filter nothing."""
    unknown = set(request.args) - set(known)
    if unknown:
        raise ValidationFailed(
            errors=tuple(
                FieldError(shortened(name), "is not a parameter") for name in sorted(unknown)[:20]
            )
        )


def parse_limit(usual: int, most: int) -> int:
    """``limit``: how many on a page."""
    text = request.args.get("limit", str(usual))
    if not (LIMIT.fullmatch(text) and 0 < int(text) <= most):
        raise refused("limit", f"must be from 1 to {most}")
    return int(text)


def parse_choice(field: str, choices: Collection[str]) -> str | None:
    """A parameter with a closed set of values."""
    text = request.args.get(field)
    if text is not None and text not in choices:
        raise refused(field, f"must be one of {', '.join(choices)}")
    return text


def parse_name(field: str) -> str | None:
    """A parameter that names a job type or a pool; one that is gone may still have jobs."""
    text = request.args.get(field)
    if text is not None and not NAME.fullmatch(text):
        raise refused(field, "is no name")
    return text


def parse_id_cursor() -> str | None:
    """``cursor``: the id that the page before ended with."""
    text = request.args.get("cursor")
    if text is None:
        return None
    found = parse_id(unpack_cursor(text))
    if found is None:
        raise bad_cursor()
    return found


def pack_cursor(text: str) -> str:
    """A position as callers see it."""
    return base64.urlsafe_b64encode(text.encode()).decode().rstrip("=")


def unpack_cursor(text: str) -> str:
    """What ``pack_cursor`` was given."""
    try:
        padded = text + "=" * (-len(text) % 4)
        return base64.b64decode(padded, altchars=b"-_", validate=True).decode()
    except ValueError:
        raise bad_cursor() from None


def bad_cursor() -> ValidationFailed:
    """The error of a cursor that was made up."""
    return refused("cursor", "is not one this server gave out")


def refused(field: str, message: str) -> ValidationFailed:
    """The error of one parameter."""
    return ValidationFailed(errors=(FieldError(field, message),))


def next_link(path: str, parameters: Mapping[str, object]) -> dict[str, str]:
    """The header that leads to the next page; parameters that are None are left out."""
    query = urlencode({name: value for name, value in parameters.items() if value is not None})
    return {"Link": f'<{path}?{query}>; rel="next"'}
