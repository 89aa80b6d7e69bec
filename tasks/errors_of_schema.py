"""The first errors of a document that does not match its schema."""

from __future__ import annotations

import json
from typing import Any

from pydantic import ValidationError

#: Most errors listed for an invalid document.
MOST_ERRORS = 20
#: Up to so many, all are made into objects; beyond, the listed ones alone.
MANY = 1_000


def first_errors(error: ValidationError) -> list[Any]:
    """The first errors as Pydantic describes them, without their values."""
    if error.error_count() <= MANY:
        return error.errors(include_url=False, include_input=False)[:MOST_ERRORS]
    # An object each takes five times as much as this text.
    text = error.json(include_url=False, include_input=False, include_context=False)
    decoder, at = json.JSONDecoder(), 1
    found: list[Any] = []
    while len(found) < MOST_ERRORS:
        entry, end = decoder.raw_decode(text, at)
        found.append(entry)
        at = end + 1  # the comma
    return found
