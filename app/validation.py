"""Checks of parsed JSON that stay linear in its size, whatever its sender made of it.

Pydantic makes an object for every error, with a copy of the whole path to it. Under one long name,
or deep down, thousands of errors take the square of the document's size: 0.3 MB became 560 MB.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import datetime
from enum import Enum
from functools import cache
from types import UnionType
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin

from pydantic import AliasChoices, AliasPath, BaseModel

from app.errors import ValidationFailed, field_error, invalid_field
from tasks.errors_of_schema import MOST_ERRORS

#: What an error takes, and each step of its path besides the characters of its name.
ERROR_BYTES = 100
STEP_BYTES = 32
#: What the errors of a document may take: so much, and a multiple of its size.
FREE_BYTES = 1_048_576
BYTES_PER_CHARACTER = 128
#: Characters of a value besides those of its texts: a digit or a quote, and a comma.
VALUE_CHARACTERS = 2

#: Types of fields inside of which no error is found.
PLAIN_TYPES = (Any, str, int, float, bool, bytes, datetime, type(None), list[Any])


class PathStep(NamedTuple):
    """One step of a path: a name or an index, and what the path takes up to here."""

    key: str | int
    bytes: int


class ErrorBudget:
    """What the errors of one request may take at worst. Items of a batch share one."""

    def __init__(self) -> None:
        self._left = FREE_BYTES

    def spend(self, plain: Any, schema: type[BaseModel], within: str = "(body)") -> None:
        """Raise if errors by this schema, one for each value, could take too much."""
        if isinstance(plain, dict):
            skipped = plain_fields(schema)
            plain = {name: value for name, value in plain.items() if name not in skipped}
        for path, container in containers(plain):
            before = path[-1].bytes if path else 0
            each = ERROR_BYTES + STEP_BYTES + before - BYTES_PER_CHARACTER * VALUE_CHARACTERS
            self._left -= each * len(container)
            values = container
            if isinstance(container, dict):
                values = container.values()
                self._left += (BYTES_PER_CHARACTER - 1) * sum(map(len, container))
            self._left += BYTES_PER_CHARACTER * sum(
                len(value) for value in values if isinstance(value, str)
            )
        if self._left < 0:
            reason = "has too many values too deep inside, or under names that are too long"
            raise invalid_field(within, reason)


def containers(value: Any) -> Iterator[tuple[list[PathStep], Any]]:
    """Every object and array that is not empty, with the path to it; memory grows with the depth.

    The path is one list that changes from one to the next.
    """
    if not (value and isinstance(value, dict | list)):
        return
    path: list[PathStep] = []
    yield path, value
    levels = [entries(value)]
    while levels:
        before = path[-1].bytes if path else 0
        for key, inner in levels[-1]:
            if inner and isinstance(inner, dict | list):
                name = len(key) if isinstance(key, str) else 0
                path.append(PathStep(key, before + STEP_BYTES + name))
                yield path, inner
                levels.append(entries(inner))
                break
        else:
            levels.pop()
            if path:
                path.pop()


def entries(container: Any) -> Iterator[tuple[str | int, Any]]:
    """The values of an object or array with their names or indexes."""
    return iter(container.items()) if isinstance(container, dict) else enumerate(container)


def find_nul(value: Any) -> str | None:
    """The path of a NUL character, or None. PostgreSQL's text cannot hold one."""
    if isinstance(value, str):
        return "(body)" if "\x00" in value else None
    for path, container in containers(value):
        for key, inner in entries(container):
            if isinstance(key, str) and "\x00" in key:
                return path_text(path)
            if isinstance(inner, str) and "\x00" in inner:
                return path_text([*path, PathStep(key, 0)])
    return None


def path_text(path: list[PathStep]) -> str:
    """A path as errors name it."""
    return ".".join(str(step.key) for step in path) or "(body)"


def refuse_many_fields(plain: Any, schema: type[BaseModel], *, spare: int = 0) -> None:
    """Raise if there are more fields than the schema has and ``spare``: some must be unknown.

    The schema would too, but with one error object for each of 100,000 names.
    """
    names = field_names(schema)
    if isinstance(plain, dict) and len(plain) > len(names) + spare:
        unknown = [name for name in plain if name not in names]
        found = tuple(field_error(name, "is not a field") for name in unknown[:MOST_ERRORS])
        raise ValidationFailed(errors=found, total=len(unknown))


def refuse_costly_payload(payload: Any, schema: type[BaseModel], budget: ErrorBudget) -> None:
    """Raise if the errors of a job's payload could take too much."""
    if schema.model_config.get("extra") == "forbid":
        try:
            refuse_many_fields(payload, schema, spare=MOST_ERRORS)
        except ValidationFailed as error:
            named = tuple(field_error(f"payload.{one.field}", one.message) for one in error.errors)
            raise ValidationFailed(errors=named, total=error.total) from None
    budget.spend(payload, schema, "payload")


@cache
def field_names(schema: type[BaseModel]) -> frozenset[str]:
    """All names that a field may have in a document."""
    found: set[str] = set()
    for name, field in schema.model_fields.items():
        alias = field.validation_alias
        choices = alias.choices if isinstance(alias, AliasChoices) else [alias]
        firsts = (one.path[0] if isinstance(one, AliasPath) else one for one in choices)
        found |= {name, *(first for first in firsts if isinstance(first, str))}
    return frozenset(found)


@cache
def plain_fields(schema: type[BaseModel]) -> frozenset[str]:
    """Fields inside of which no error is found, by their names in a document."""
    found = set()
    for name, field in schema.model_fields.items():
        if is_plain(field.annotation):
            found.add(field.validation_alias if isinstance(field.validation_alias, str) else name)
    return frozenset(found)


def is_plain(annotation: Any) -> bool:
    """Whether an invalid value of this type is one error."""
    if annotation in PLAIN_TYPES or get_origin(annotation) is Literal:
        return True
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return True
    union = get_origin(annotation) in (Union, UnionType)
    return union and all(map(is_plain, get_args(annotation)))
