"""Answers held against the OpenAPI document, which is taken at its word.

The document lets answers have fields that it does not name, so that some can be added. Here
they may not: what is new has to go in.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

import jsonschema_rs

#: What a document says can be asked and answered: method, path and status.
Said = tuple[str, str, int]
METHODS = ("get", "head", "post", "put", "patch", "delete")


def strict(document: dict[str, Any]) -> dict[str, Any]:
    """The same document, in which objects have the fields that are named and no others."""
    components = document["components"]
    schemas = {
        name: {"additionalProperties": False, **schema} if "properties" in schema else schema
        for name, schema in components["schemas"].items()
    }
    return {**document, "components": {**components, "schemas": schemas}}


class Described:
    """The document, and which of its answers were seen."""

    def __init__(self, document: dict[str, Any]) -> None:
        self.document = strict(document)
        self.seen: set[Said] = set()
        self._patterns = {
            path: re.compile(re.sub(r"\{\w+\}", "[^/]+", path))
            for path in sorted(document["paths"], key=lambda path: path.count("{"))
        }

    def operations(self) -> dict[tuple[str, str], dict[str, Any]]:
        """Every operation by method and path."""
        return {
            (method.upper(), path): item[method]
            for path, item in self.document["paths"].items()
            for method in METHODS
            if method in item
        }

    def successes(self) -> set[Said]:
        """Every answer that is no error."""
        return {
            (method, path, int(status))
            for (method, path), operation in self.operations().items()
            for status in operation["responses"]
            if int(status) < 400
        }

    def check(
        self, method: str, url: str, status: int, headers: Mapping[str, str], body: bytes
    ) -> None:
        """The answer is one that the document tells of, in every part."""
        path = self.path_of(url)
        operation = self.document["paths"][path][method.lower()]
        assert str(status) in operation["responses"], (method, url, status, body)
        response = self.resolve(operation["responses"][str(status)])
        self._check_headers(response.get("headers", {}), headers)
        content = response.get("content")
        if content is None or method == "HEAD":
            assert not body, (method, url, body)
        else:
            ((kind, media),) = content.items()
            assert headers["Content-Type"].partition(";")[0] == kind
            if kind.endswith("json"):
                self.validate(media["schema"], json.loads(body))
        self.seen.add((method, path, status))

    def path_of(self, url: str) -> str:
        """The path of the document that a URL is one of; those without parameters first."""
        asked = url.partition("?")[0]
        return next(path for path, pattern in self._patterns.items() if pattern.fullmatch(asked))

    def resolve(self, found: dict[str, Any]) -> dict[str, Any]:
        """What a reference refers to."""
        while "$ref" in found:
            reference = found["$ref"]
            found = self.document
            for step in reference.removeprefix("#/").split("/"):
                found = found[step]
        return found

    def validate(self, schema: dict[str, Any], value: Any) -> None:
        """The value is as the schema has it, formats included."""
        root = {**schema, "components": self.document["components"]}
        jsonschema_rs.Draft202012Validator(root, validate_formats=True).validate(value)

    def _check_headers(self, told: dict[str, Any], headers: Mapping[str, str]) -> None:
        for name, header in told.items():
            value = headers.get(name)
            assert value is not None or not header["required"], (name, dict(headers))
            if value is not None:
                numeric = header["schema"].get("type") == "integer"
                self.validate(header["schema"], int(value) if numeric else value)
