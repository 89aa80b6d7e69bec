"""Settings that make no sense end the process with a line for each, not with a traceback."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, SettingsError

S = TypeVar("S", bound=BaseSettings)

PREFIX = "FAIRLINE_"
#: In place of pydantic's words, by the beginning of its code.
WORDS = {
    "int": "must be a whole number",
    "float": "must be a number",
    "decimal": "must be a number",
    "dict": "must be an object, as JSON",
    "bool": "must be true or false",
    "missing": "is missing",
    "extra_forbidden": "is no setting",
}


def read_settings(kind: type[S], **changes: Any) -> S:
    """The settings of this process, with these in place of what the environment says."""
    with plainly():
        return kind(**changes)


@contextmanager
def plainly(*within: str) -> Iterator[None]:
    """What is refused inside, in a line for each; ``within``: the setting it is a part of."""
    try:
        yield
    except ValidationError as refused:
        lines = [line_of((*within, *error["loc"]), error) for error in refused.errors()]
        raise SystemExit("\n".join(lines)) from None
    except SettingsError as unread:
        found = re.search(r'field "(\w+)"', str(unread))
        name = f"{PREFIX}{found[1].upper()}" if found else "a setting"
        raise SystemExit(f"fairline: {name}: is not valid JSON: {unread.__cause__}") from None


def line_of(path: tuple[int | str, ...], error: ErrorDetails) -> str:
    """One refusal: the setting, what inside it, and what is wrong."""
    said = str(error["ctx"]["error"]) if error["type"] == "value_error" else in_words(error)
    if not path:  # of several settings, which the words name
        return f"fairline: {said}"
    name, *inside = (str(part) for part in path if part != "[key]")
    return f"fairline: {PREFIX}{name.upper()}: {'.'.join(inside)} {said}".replace(":  ", ": ")


def in_words(error: ErrorDetails) -> str:
    """What pydantic says, as we would."""
    code, value = error["type"], error["input"]
    # As the code begins: int_parsing, int_type and int_from_float are all one.
    begun = code if code in WORDS else code.split("_")[0]
    said = WORDS.get(begun) or error["msg"].replace("Input should", "must").lower()
    return f"{said}, not {value!r:.60}" if isinstance(value, str | int | float) else said
