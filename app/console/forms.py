"""Forms of the console: what one shows, why it is refused, and the request that it stands for.

Of two who save the same thing, each changes only what it changed: a hidden field, ``was``, has what
the form showed, and fields that are sent as they were shown stay as they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeVar

import orjson
from pydantic import BaseModel

from app.api.http.body import JsonDocument, validate_body
from app.errors import FairlineError, FieldError, ValidationFailed

WAS = "was"

Body = TypeVar("Body", bound=BaseModel)


@dataclass(frozen=True, slots=True)
class Form:
    """What a form shows."""

    #: By field, as text.
    typed: Mapping[str, str] = field(default_factory=dict)
    #: Why it was refused, in general and by field.
    detail: str = ""
    errors: Mapping[str, str] = field(default_factory=dict)

    @property
    def was(self) -> str:
        """The value of the hidden field: of a form that was refused, what it showed at first."""
        return self.typed.get(WAS) or orjson.dumps(dict(self.typed)).decode()


def reasons(error: FairlineError, *, nested: bool = False) -> tuple[str, dict[str, str]]:
    """Why a form is refused: in general, and the first error of each field.

    ``nested``: the form has a field of its own for what is inside another one.
    """
    errors: dict[str, str] = {}
    for problem in error.errors:
        name = problem.field if nested else problem.field.partition(".")[0]
        errors.setdefault(name, f"{problem.field} {problem.message}")
    return "" if errors else error.detail, errors


def changed_names(typed: Mapping[str, str]) -> set[str]:
    """Names of the fields that were changed; all of them if it is not known what was shown."""
    names = typed.keys() - {WAS}
    try:
        was = orjson.loads(typed.get(WAS, ""))
    except orjson.JSONDecodeError:
        was = None
    if not isinstance(was, dict):
        return set(names)
    return {name for name in names | was.keys() if lines(was.get(name)) != lines(typed.get(name))}


def lines(value: object) -> list[str]:
    """A text without its kind of line ends, which browsers change."""
    return str(value or "").strip().splitlines()


def body_with_payload(fields: Mapping[str, object], payload: str, schema: type[Body]) -> Body:
    """A body of the API with the payload as it was typed, or all of its errors."""
    typed = payload.strip().encode() or b"{}"
    wrong: tuple[FieldError, ...] = ()
    try:
        orjson.loads(typed)
        document = document_of(fields, typed)  # in which it is nested one level deeper
    except orjson.JSONDecodeError as error:
        wrong = (FieldError("payload", f"is not JSON: {error}"),)
        document = document_of(fields, b"{}")
    try:
        body = validate_body(document, schema)
    except ValidationFailed as error:
        raise ValidationFailed(errors=(*error.errors, *wrong)) from None
    if wrong:
        raise ValidationFailed(errors=wrong)
    return body


def document_of(fields: Mapping[str, object], payload: bytes) -> JsonDocument:
    """The body that a client would have sent, with a payload that is JSON."""
    raw = b'%b,"payload":%b}' % (orjson.dumps(fields)[:-1], payload)
    return JsonDocument(raw, orjson.loads(raw))


def number_of(typed: str) -> int | str:
    """A whole number; what is none stays a text, which the schema refuses."""
    text = typed.strip() or "0"
    digits = text.removeprefix("-")
    small = digits.isascii() and digits.isdecimal() and len(digits) < 10
    return int(text) if small else text
