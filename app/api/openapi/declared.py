"""The decorator with which a route declares its access, parameters and answers.

A declaration is an attribute of the function. It wraps nothing and costs a request nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel

from app.api.auth.access import Access, open_to

View = TypeVar("View", bound=Callable[..., Any])
Schema = Mapping[str, Any]

#: Attribute of a view function with its operation.
DECLARED = "fairline_operation"

JSON = "application/json"


@dataclass(frozen=True, slots=True)
class Parameter:
    """A parameter in the query, the path or a header."""

    name: str
    description: str
    schema: Schema = field(default_factory=lambda: {"type": "string"})


@dataclass(frozen=True, slots=True)
class Header(Parameter):
    """A header of an answer."""

    #: Whether every such answer has it.
    always: bool = True


@dataclass(frozen=True, slots=True)
class Returns:
    """An answer of a view that is not a problem."""

    status: int
    #: None: no body; a mapping: a schema without a model.
    content: type[BaseModel] | Schema | None = None
    headers: tuple[Header, ...] = ()
    #: By default that of the model, or the name of the status.
    description: str = ""
    content_type: str = JSON


@dataclass(frozen=True, slots=True)
class Operation:
    """Declares a view's access, parameters and answers; its docstring is the description."""

    access: Access
    summary: str
    answer: Returns
    #: Other answers that are not problems.
    also: tuple[Returns, ...] = ()
    #: Schema of the body; None: there is none.
    body: type[BaseModel] | None = None
    body_required: bool = True
    #: All allowed query parameters. None: they are ignored, and unknown ones are not rejected.
    query: tuple[Parameter, ...] | None = ()
    headers: tuple[Parameter, ...] = ()
    #: Errors besides those that follow from the other fields.
    errors: tuple[type[Exception], ...] = ()
    #: Whether HEAD is documented too.
    head: bool = False

    def __call__(self, view: View) -> View:
        setattr(view, DECLARED, self)
        return open_to(self.access)(view)

    @property
    def answers(self) -> tuple[Returns, ...]:
        return (self.answer, *self.also)


for_anyone = partial(Operation, Access.PUBLIC)
for_tenants = partial(Operation, Access.TENANT)
for_operators = partial(Operation, Access.OPERATOR)


def operation_of(view: Callable[..., Any] | None) -> Operation | None:
    """The operation a view declared."""
    return getattr(view, DECLARED, None)
