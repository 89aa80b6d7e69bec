"""Validation errors by field, short enough to be sent back to the client."""

from __future__ import annotations

from pydantic import ValidationError

from app.errors import FieldError
from tasks.registry import MOST_ERRORS

#: Most field errors reported at once, and most characters of a name or message in one.
MOST_NAME = 200


def field_errors(error: ValidationError, within: str = "") -> tuple[FieldError, ...]:
    """Pydantic's errors as ours; ``within`` names the field that was validated."""
    found = error.errors(include_url=False, include_input=False)[:MOST_ERRORS]
    prefix = [within] if within else []
    return tuple(
        field_error(".".join([*prefix, *map(str, entry["loc"])]) or "(body)", entry["msg"])
        for entry in found
    )


def field_error(path: str, message: str) -> FieldError:
    """An error that does not send a megabyte of name back to its sender."""
    return FieldError(shortened(path), shortened(message))


def shortened(text: str) -> str:
    """The beginning of a text, if it is long."""
    return text if len(text) <= MOST_NAME else f"{text[:MOST_NAME]}…"
