"""Puts the OpenAPI document together from the routes of an application.

Paths, methods and access come from Flask's own table, bodies and answers from the models that
the views name, errors from the table that turns them into problems.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any

from flask import Flask
from pydantic import BaseModel
from werkzeug.routing import Rule

from app.api.auth.access import Access, access_of
from app.api.openapi.declared import JSON, DeclaredResponse, Operation, Parameter, operation_of
from app.api.openapi.errors import problem_responses
from app.api.openapi.parts import IN_PATHS
from app.api.openapi.shapes import Shapes

#: Of the API, not of the software: it changes when callers have to.
API_VERSION = "1"
#: Modules whose routes are the API; the others are pages for browsers.
API_MODULES = "app.api."
#: A part of a rule that stands for something, with or without a converter.
NAMED = re.compile(r"<(?:[^<>:]+:)?(\w+)>")
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE")

DESCRIPTION = """\
A job platform that is fair to its tenants. JSON in, JSON out; times are RFC 3339 in UTC. Every \
error is `application/problem+json` with a stable `code`. Lists carry `Link: <…>; rel="next"` \
while there is more."""

#: By the first part of a path, with what the group is for.
TAGS = {
    "applications": ("Applications", "Candidates' applications, scored and ranked."),
    "leaderboard": ("Applications", ""),
    "jobs": ("Jobs", "Work of any registered type."),
    "dead-letters": ("Dead letters", "Jobs that failed for good, and the way back."),
    "schedules": ("Schedules", "Work that comes again and again."),
    "events": ("Events", "What happens, pushed as server-sent events."),
    "tenant": ("Tenant", "Your terms, limits and usage."),
    "operator": ("Operator", "Tenants, keys, quotas and scaling, for who runs the platform."),
    "": ("Platform", "This process, and this document."),
}

TENANT_KEY = "tenantKey"
OPERATOR_KEY = "operatorKey"
SECURITY_SCHEMES = {
    TENANT_KEY: {"type": "http", "scheme": "bearer", "description": "An API key of a tenant's."},
    OPERATOR_KEY: {"type": "http", "scheme": "bearer", "description": "An operator's API key."},
}


class UndeclaredRoute(RuntimeError):
    """A route of the API does not say what it takes and answers."""


@dataclass(frozen=True, slots=True)
class Route:
    """A route of the API and what it says of itself."""

    rule: Rule
    operation: Operation
    access: Access
    description: str

    @property
    def methods(self) -> tuple[str, ...]:
        """Those that are told; HEAD of a route is, where it is meant to be used."""
        methods = self.rule.methods or set()
        return tuple(m for m in METHODS if m in methods and (m != "HEAD" or self.operation.head))

    @property
    def path(self) -> str:
        """The path as OpenAPI writes it."""
        return NAMED.sub(r"{\1}", self.rule.rule)


def find_routes(app: Flask) -> list[Route]:
    """The routes of the API, in the order of their declaration."""
    routes, undeclared = [], []
    for rule in app.url_map.iter_rules():
        view = app.view_functions[rule.endpoint]
        if not view.__module__.startswith(API_MODULES):
            continue
        operation, access = operation_of(view), access_of(view)
        if operation is None or access is None or not rule.arguments <= IN_PATHS.keys():
            undeclared.append(rule.endpoint)
        else:
            routes.append(Route(rule, operation, access, inspect.getdoc(view) or ""))
    if undeclared:
        raise UndeclaredRoute(
            f"{', '.join(sorted(undeclared))}: say what it takes and answers, by @described of"
            " app.api.openapi, and what its path names, in IN_PATHS"
        )
    return routes


def build_document(
    routes: Collection[Route], types: Collection[str], *, anonymous: bool
) -> dict[str, Any]:
    """The document; ``anonymous``: who has no key is let in as a tenant."""
    shapes = Shapes(models_of(routes), types)
    for route in routes:
        if route.operation.body is not None and "PATCH" in route.methods:
            shapes.leave_out_defaults(route.operation.body)
    paths: dict[str, dict[str, Any]] = {}
    responses: dict[str, Any] = {}
    for route in routes:
        item = paths.setdefault(route.path, {})
        if route.rule.arguments:
            item["parameters"] = [
                parameter_object(IN_PATHS[name], "path") for name in arguments_of(route.rule)
            ]
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
    """Every model that a route names, and whether it is one of a request."""
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
        "security": security_of(route.access, anonymous),
    }
    if route.description:
        described["description"] = plain(route.description)
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
    problems = problem_responses(operation, route.access, bool(route.rule.arguments), responses)
    described["responses"] = {
        **{str(one.status): answer_object(one, method, shapes) for one in operation.answers},
        **problems,
    }
    return described


def answer_object(answer: DeclaredResponse, method: str, shapes: Shapes) -> dict[str, Any]:
    """An answer that is no problem."""
    described: dict[str, Any] = {"description": answer.description}
    if answer.headers:
        described["headers"] = {one.name: one.document for one in answer.headers}
    if answer.content is not None and method != "HEAD":
        content = answer.content
        schema = shapes.reference(content) if isinstance(content, type) else dict(content)
        described["content"] = {answer.content_type: {"schema": schema}}
    return described


def parameter_object(parameter: Parameter, place: str) -> dict[str, Any]:
    """A parameter; only those of the path have to be there."""
    return {
        "name": parameter.name,
        "in": place,
        "required": place == "path",
        "description": parameter.description,
        "schema": dict(parameter.schema),
    }


def arguments_of(rule: Rule) -> list[str]:
    """What a path names, from left to right."""
    return sorted(rule.arguments, key=rule.rule.index)


def tag_of(path: str) -> str:
    """The group that a path belongs to."""
    return TAGS.get(path.split("/")[1], TAGS[""])[0]


def security_of(access: Access, anonymous: bool) -> list[dict[str, list[str]]]:
    """The keys that open a route; an empty entry needs none."""
    if access is Access.PUBLIC:
        return []
    if access is Access.OPERATOR:
        return [{OPERATOR_KEY: []}]
    return [{TENANT_KEY: []}, {}] if anonymous else [{TENANT_KEY: []}]


def plain(text: str) -> str:
    """A docstring as Markdown."""
    return text.replace("``", "`")
