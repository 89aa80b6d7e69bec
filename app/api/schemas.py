"""The shapes of requests. They validate, and they are the source of the OpenAPI document."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
)
from pydantic_core import PydanticCustomError

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]

RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def require_rfc3339(value: Any) -> Any:
    """Refuse the other ways to write a time that Pydantic knows, such as ``"1700000000"``."""
    if not isinstance(value, str) or not RFC3339.fullmatch(value):
        raise PydanticCustomError(
            "rfc3339", "Input should be an RFC 3339 time with its zone, as 2030-01-31T12:00:00Z"
        )
    return value


#: In any time zone these years are ones that both PostgreSQL and Python can tell.
Moment = Annotated[
    AwareDatetime,
    # Not strict: behind the validator even a string is something to be converted.
    Field(ge=datetime(1970, 1, 1, tzinfo=UTC), lt=datetime(9999, 1, 1, tzinfo=UTC), strict=False),
    BeforeValidator(require_rfc3339),
]


class Strict(BaseModel):
    """Unknown fields are errors; types are not guessed."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SubmitApplication(Strict):
    """Body of ``POST /applications``."""

    candidate: Name = Field(description="Who applies.")
    payload: dict[str, Any] = Field(description="The application itself, any JSON object.")
    role: Name = Field("general", description="What they apply for; each has a leaderboard.")
    priority: int = Field(0, ge=-100, le=100, description="Higher runs first among your jobs.")
    execute_at: Moment | None = Field(None, description="Not before this time.")
    not_after: Moment | None = Field(None, description="Not started after this time.")
