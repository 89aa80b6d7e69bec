"""The JSON schemas of the document, from the models of requests and answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema

from app.api.schemas.answers import Problem
from app.api.schemas.requests import ChangeSchedule, CreateSchedule, SubmitBatch, SubmitJob

REFERENCE = "#/components/schemas/{model}"
#: Requests that name a registered job type.
WITH_TYPE = (SubmitJob, CreateSchedule, ChangeSchedule)
#: The model accepts any item: each is validated by itself.
OTHER_ITEM = "Any other item is rejected individually, in its result."


class Untitled(GenerateJsonSchema):
    """Omits the titles of fields, which only repeat their names."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Shapes:
    """The schemas that operations refer to."""

    def __init__(
        self, models: Iterable[tuple[type[BaseModel], bool]], types: Collection[str]
    ) -> None:
        """``models``: each with whether it is a request's; ``types``: registered job types."""
        wanted: dict[tuple[type[BaseModel], JsonSchemaMode], None] = {
            (Problem, "serialization"): None
        }
        for model, is_request in models:
            wanted[model, "validation" if is_request else "serialization"] = None
        references, made = models_json_schema(
            list(wanted), by_alias=True, ref_template=REFERENCE, schema_generator=Untitled
        )
        self._references = {model: dict(found) for (model, _), found in references.items()}
        self.schemas: dict[str, Any] = made["$defs"]
        for schema in self.schemas.values():
            if "description" in schema:
                schema["description"] = schema["description"].replace("``", "`")
        for model in WITH_TYPE:
            self.schemas[model.__name__]["properties"]["type"]["enum"] = sorted(types)
        self.schemas[SubmitBatch.__name__]["properties"]["jobs"]["items"] = {
            "anyOf": [self.reference(SubmitJob), {"description": OTHER_ITEM}]
        }

    def reference(self, model: type[BaseModel]) -> dict[str, Any]:
        """A reference to the model's schema."""
        return self._references[model]

    def leave_out_defaults(self, model: type[BaseModel]) -> None:
        """For a change: omitted fields keep their values, whatever the model's defaults."""
        for field in self.schemas[model.__name__]["properties"].values():
            field.pop("default", None)
