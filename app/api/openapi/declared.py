"""What a view says of itself: one decorator, read by the document and by the checks.

A declaration is an attribute of the function. It wraps nothing and costs a request nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from pydantic import BaseModel

View = TypeVar("View", bound=Callable[..., Any])
Schema = Mapping[str, Any]

#: Attribute of a view function that holds its operation.
DECLARED = "fairline_operation"

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter of the query, of the path or in a header."""

    name: str
    description: str
    schema: Schema = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True)
class Header:
    """A header of an answer."""

    name: str
    description: str
    schema: Schema = field(default_factory=lambda: {"type": "string"})
    #: Whether no such answer is without it.
    always: bool = True

    @property
    def document(self) -> dict[str, Any]:
        """As OpenAPI has it."""
        return {
            "description": self.description,
            "required": self.always,
            "schema": dict(self.schema),
        }


@dataclass(frozen=True, slots=True)
class DeclaredResponse:
    """What a view may answer, other than a problem."""

    status: int
    description: str
    #: What is in it; None is no body, a mapping a schema that is no model's.
    content: type[BaseModel] | Schema | None = None
    headers: tuple[Header, ...] = ()
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Operation:
    """A view as callers see it."""

    summary: str
    answers: tuple[DeclaredResponse, ...]
    #: What the body has to be; None takes none.
    body: type[BaseModel] | None = None
    #: Whether there has to be one.
    body_required: bool = True
    #: All that the query may hold. None: nothing looks at it, and what it holds is not refused.
    query: tuple[Parameter, ...] | None = ()
    headers: tuple[Parameter, ...] = ()
    #: What may go wrong besides what may with every route that is made like this one.
    errors: tuple[type[Exception], ...] = ()
    #: Whether HEAD is worth a word of its own.
    head: bool = False

    @property
    def query_names(self) -> tuple[str, ...] | None:
        """The names that the query may hold; None: any."""
        return None if self.query is None else tuple(one.name for one in self.query)


def described(
    summary: str,
    *answers: DeclaredResponse,
    body: type[BaseModel] | None = None,
    body_required: bool = True,
    query: tuple[Parameter, ...] | None = (),
    headers: tuple[Parameter, ...] = (),
    errors: tuple[type[Exception], ...] = (),
    head: bool = False,
) -> Callable[[View], View]:
    """Declare what a view takes and answers; its docstring is the description."""
    operation = Operation(summary, answers, body, body_required, query, headers, errors, head)

    def declare(view: View) -> View:
        setattr(view, DECLARED, operation)
        return view

    return declare


def operation_of(view: Callable[..., Any] | None) -> Operation | None:
    """What a view declared."""
    return getattr(view, DECLARED, None)
