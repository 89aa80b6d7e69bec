"""Builds the OpenAPI document from the routes of an application.

Paths and methods come from Flask's URL map, the rest from the operations that views declare.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from flask import Flask
from pydantic import BaseModel
from werkzeug.routing import Rule

from app.api.auth.access import Access
from app.api.openapi.declared import JSON, Operation, Parameter, Returns, operation_of
from app.api.openapi.errors import problem_responses
from app.api.openapi.parts import IN_PATHS, headers_object
from app.api.openapi.shapes import Shapes

#: The API's version, not the software's: changes only if clients must change.
API_VERSION = "1"
#: Modules whose routes form the API; other routes are pages.
API_MODULES = "app.api."
#: A variable part of a rule, with or without a converter.
NAMED = re.compile(r"<(?:[^<>:]+:)?(\w+)>")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

DESCRIPTION = """\
A job platform that is fair to its tenants. JSON in, JSON out; times are RFC 3339 in UTC. Every \
error is `application/problem+json` with a stable `code`. Lists carry `Link: <…>; rel="next"` \
while there is more."""

#: Names and descriptions of the groups, by the first part of a path.
TAGS = {
    "applications": ("Applications", "Candidates' applications, scored and ranked."),
    "leaderboard": ("Applications", ""),
    "jobs": ("Jobs", "Jobs of any registered type."),
    "dead-letters": ("Dead letters", "Jobs that failed for good, and their replay."),
    "schedules": ("Schedules", "Recurring jobs."),
    "events": ("Events", "Server-sent events."),
    "tenant": ("Tenant", "Your terms, limits and usage."),
    "operator": ("Operator", "Tenants, keys, quotas and scaling, for operators."),
    "": ("Platform", "Health, metrics and this document."),
}

TENANT_KEY = "tenantKey"
OPERATOR_KEY = "operatorKey"
SECURITY_SCHEMES = {
    TENANT_KEY: {"type": "http", "scheme": "bearer", "description": "A tenant's API key."},
    OPERATOR_KEY: {"type": "http", "scheme": "bearer", "description": "An operator's API key."},
}


class UndeclaredRoute(RuntimeError):
    """An API route does not declare its parameters and answers."""


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the API and its operation."""

    rule: Rule
    operation: Operation
    description: str

    @property
    def methods(self) -> tuple[str, ...]:
        """The documented methods."""
        methods = self.rule.methods or set()
        return tuple(m for m in METHODS if m in methods and (m != "HEAD" or self.operation.head))

    @property
    def path(self) -> str:
        """The path in OpenAPI's notation."""
        return NAMED.sub(r"{\1}", self.rule.rule)


def find_routes(app: Flask) -> list[Route]:
    """The routes of the API, in the order of declaration."""
    routes, undeclared = [], []
    for rule in app.url_map.iter_rules():
        view = app.view_functions[rule.endpoint]
        if not view.__module__.startswith(API_MODULES):
            continue
        operation = operation_of(view)
        if operation is None or not rule.arguments <= IN_PATHS.keys():
            undeclared.append(rule.endpoint)
        else:
            # A docstring as Markdown.
            description = (inspect.getdoc(view) or "").replace("``", "`")
            routes.append(Route(rule, operation, description))
    if undeclared:
        raise UndeclaredRoute(
            f"{', '.join(sorted(undeclared))}: declare an Operation of app.api.openapi, and its"
            " path parameters in IN_PATHS"
        )
    return routes


def build_document(
    routes: Collection[Route], types: Collection[str], *, anonymous: bool
) -> dict[str, Any]:
    """The document; ``anonymous``: callers without a key act as a tenant."""
    shapes = Shapes(models_of(routes), types)
    for route in routes:
        if route.operation.body is not None and "PATCH" in route.methods:
            shapes.leave_out_defaults(route.operation.body)
    paths: dict[str, dict[str, Any]] = {}
    responses: dict[str, Any] = {}
    for route in routes:
        item = paths.setdefault(route.path, {})
        if route.rule.arguments:
            names = sorted(route.rule.arguments, key=route.rule.rule.index)
            item["parameters"] = [parameter_object(IN_PATHS[name], "path") for name in names]
        for method in route.methods:
            item[method.lower()] = operation_object(route, method, shapes, responses, anonymous)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fairline", "version": API_VERSION, "description": DESCRIPTION},
        "tags": [{"name": name, "description": text} for name, text in TAGS.values() if text],
        "paths": paths,
        "components": {
            "schemas": shapes.schemas,
            "responses": responses,
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def models_of(routes: Collection[Route]) -> Iterator[tuple[type[BaseModel], bool]]:
    """The models of all routes, each with whether it is a request's."""
    for route in routes:
        if route.operation.body is not None:
            yield route.operation.body, True
        for answer in route.operation.answers:
            if isinstance(answer.content, type):
                yield answer.content, False


def operation_object(
    route: Route, method: str, shapes: Shapes, responses: dict[str, Any], anonymous: bool
) -> dict[str, Any]:
    """One method of a path."""
    operation = route.operation
    described: dict[str, Any] = {
        "operationId": route.rule.endpoint.replace(".", "_") + ("_head" * (method == "HEAD")),
        "summary": operation.summary,
        "tags": [tag_of(route.path)],
        "security": security_of(operation.access, anonymous),
    }
    if route.description:
        described["description"] = route.description
    parameters = [
        *(parameter_object(one, "query") for one in operation.query or ()),
        *(parameter_object(one, "header") for one in operation.headers),
    ]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.body_required,
            "content": {JSON: {"schema": shapes.reference(operation.body)}},
        }
    described["responses"] = {
        **{str(one.status): answer_object(one, method, shapes) for one in operation.answers},
        **problem_responses(operation, bool(route.rule.arguments), responses),
    }
    return described


def answer_object(answer: Returns, method: str, shapes: Shapes) -> dict[str, Any]:
    """An answer that is not a problem."""
    content = answer.content
    name = content.__doc__ if isinstance(content, type) else HTTPStatus(answer.status).phrase
    described: dict[str, Any] = {
        "description": answer.description or name,
        **headers_object(answer.headers),
    }
    if content is not None and method != "HEAD":
        schema = shapes.reference(content) if isinstance(content, type) else dict(content)
        described["content"] = {answer.content_type: {"schema": schema}}
    return described


def parameter_object(parameter: Parameter, place: str) -> dict[str, Any]:
    """A parameter; only those in the path are required."""
    return {
        "name": parameter.name,
        "in": place,
        "required": place == "path",
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }


def tag_of(path: str) -> str:
    """The group that a path belongs to."""
    return TAGS.get(path.split("/")[1], TAGS[""])[0]


def security_of(access: Access, anonymous: bool) -> list[dict[str, list[str]]]:
    """The accepted kinds of keys; an empty entry means no key."""
    if access is Access.PUBLIC:
        return []
    if access is Access.OPERATOR:
        return [{OPERATOR_KEY: []}]
    return [{TENANT_KEY: []}, {}] if anonymous else [{TENANT_KEY: []}]
