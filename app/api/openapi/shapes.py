"""The schemas of the document, from the models that validate requests and describe answers."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaMode, models_json_schema

from app.api.schemas.answers import Problem
from app.api.schemas.requests import SubmitBatch, SubmitJob
from app.api.schemas.schedules import ChangeSchedule, CreateSchedule

REFERENCE = "#/components/schemas/{model}"
#: Requests that name a registered job type.
WITH_TYPE = (SubmitJob, CreateSchedule, ChangeSchedule)
#: The model leaves items open: each is judged by itself.
OTHER_ITEM = "Anything else is refused alone, in its result."


class Untitled(GenerateJsonSchema):
    """Without a title for every field, which would only repeat its name."""

    def field_title_should_be_set(self, schema: Any) -> bool:
        return False


class Shapes:
    """The schemas that routes refer to."""

    def __init__(
        self, models: Iterable[tuple[type[BaseModel], bool]], types: Collection[str]
    ) -> None:
        """``models``: with whether it is one of a request; ``types``: what may be submitted."""
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
        """Of a change: what is left out stays as it is, whatever the model says."""
        for field in self.schemas[model.__name__]["properties"].values():
            field.pop("default", None)
