"""Builds the OpenAPI document from the routes of an application.

Paths and methods come from Flask's URL map, the rest from the operations that views declare.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass
from http import HTTPStatus
from typing import Any

from flask import Flask
from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema
from werkzeug.routing import Rule

from app.api.auth.access import Access
from app.api.openapi.declared import IN_PATHS, JSON, Operation, Parameter, Returns, operation_of
from app.api.openapi.errors import headers_object, problem_responses
from app.api.schemas.answers import Problem
from app.api.schemas.requests import ChangeSchedule, CreateSchedule, SubmitBatch, SubmitJob

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

NEEDS = "operations name the scope that it must have."
SECURITY_SCHEMES = {
    f"{kind}Key": {"type": "http", "scheme": "bearer", "description": f"{whose} API key; {NEEDS}"}
    for kind, whose in (("tenant", "A tenant's"), ("operator", "An operator's"))
}

REFERENCE = "#/components/schemas/{model}"
#: Requests that name a registered job type.
WITH_TYPE = (SubmitJob, CreateSchedule, ChangeSchedule)
#: The model accepts any item: each is validated by itself.
OTHER_ITEM = "Any other item is rejected individually, in its result."


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
    schemas = Schemas(routes, types)
    paths: dict[str, dict[str, Any]] = {}
    responses: dict[str, Any] = {}
    for route in routes:
        item = paths.setdefault(route.path, {})
        if route.rule.arguments:
            names = sorted(route.rule.arguments, key=route.rule.rule.index)
            item["parameters"] = parameter_objects([IN_PATHS[name] for name in names], "path")
        for method in route.methods:
            item[method.lower()] = operation_object(route, method, schemas, responses, anonymous)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Fairline", "version": API_VERSION, "description": DESCRIPTION},
        "tags": [{"name": name, "description": text} for name, text in TAGS.values() if text],
        "paths": paths,
        "components": {
            "schemas": schemas.objects,
            "responses": responses,
            "securitySchemes": SECURITY_SCHEMES,
        },
    }


def operation_object(
    route: Route, method: str, schemas: Schemas, responses: dict[str, Any], anonymous: bool
) -> dict[str, Any]:
    """One method of a path."""
    operation = route.operation
    described: dict[str, Any] = {
        "operationId": route.rule.endpoint.replace(".", "_") + ("_head" * (method == "HEAD")),
        "summary": operation.summary,
        "tags": [TAGS.get(route.path.split("/")[1], TAGS[""])[0]],
        "security": security_of(operation, anonymous),
    }
    if route.description:
        described["description"] = route.description
    parameters = [
        *parameter_objects(operation.query or (), "query"),
        *parameter_objects(operation.headers, "header"),
    ]
    if parameters:
        described["parameters"] = parameters
    if operation.body is not None:
        described["requestBody"] = {
            "required": operation.body_required,
            "content": {JSON: {"schema": schemas.references[operation.body]}},
        }
    described["responses"] = {
        **{str(one.status): answer_object(one, method, schemas) for one in operation.answers},
        **problem_responses(operation, bool(route.rule.arguments), responses),
    }
    return described


def answer_object(answer: Returns, method: str, schemas: Schemas) -> dict[str, Any]:
    """An answer that is not a problem."""
    content = answer.content
    name = content.__doc__ if isinstance(content, type) else HTTPStatus(answer.status).phrase
    described: dict[str, Any] = {
        "description": answer.description or name,
        **headers_object(answer.headers),
    }
    if content is not None and method != "HEAD":
        schema = schemas.references[content] if isinstance(content, type) else dict(content)
        described["content"] = {answer.content_type: {"schema": schema}}
    return described


def parameter_objects(parameters: Iterable[Parameter], place: str) -> list[dict[str, Any]]:
    """Parameters in one place; only those in the path are required."""
    required = place == "path"
    return [{"in": place, "required": required, **asdict(parameter)} for parameter in parameters]


def security_of(operation: Operation, anonymous: bool) -> list[dict[str, list[str]]]:
    """The accepted kinds of keys with a scope for each; an empty entry means no key."""
    if operation.access is Access.PUBLIC:
        return []
    name = "operatorKey" if operation.access is Access.OPERATOR else "tenantKey"
    keys: list[dict[str, list[str]]] = [{name: [scope.value]} for scope in operation.scopes]
    return [*keys, {}] if anonymous and name == "tenantKey" else keys


class Untitled(GenerateJsonSchema):
    """Omits the titles of fields, which only repeat their names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Schemas:
    """The schemas that operations refer to."""

    def __init__(self, routes: Iterable[Route], types: Collection[str]) -> None:
        """``types``: registered job types."""
        models: set[tuple[type[BaseModel], JsonSchemaMode]] = {(Problem, "serialization")}
        bodies = [(one.operation.body, one.methods) for one in routes if one.operation.body]
        models |= {(body, "validation") for body, _ in bodies}
        for route in routes:
            contents = [answer.content for answer in route.operation.answers]
            models |= {(one, "serialization") for one in contents if isinstance(one, type)}
        references, made = models_json_schema(
            sorted(models, key=str),
            by_alias=True,
            ref_template=REFERENCE,
            schema_generator=Untitled,
        )
        self.references = {model: dict(found) for (model, _), found in references.items()}
        self.objects: dict[str, Any] = made["$defs"]
        for schema in self.objects.values():
            if "description" in schema:
                schema["description"] = schema["description"].replace("``", "`")
        for model in WITH_TYPE:
            field = self.objects[model.__name__]["properties"]["type"]
            field["enum"] = sorted(types)
            if not set(field.get("examples", ())) <= set(types):
                field["examples"] = sorted(types)[:1]
        self.objects[SubmitBatch.__name__]["properties"]["jobs"]["items"] = {
            "anyOf": [self.references[SubmitJob], {"description": OTHER_ITEM}]
        }
        for body, methods in bodies:
            # In a change omitted fields keep their values, whatever the model's defaults.
            for field in self.objects[body.__name__]["properties"].values():
                if "PATCH" in methods:
                    field.pop("default", None)
