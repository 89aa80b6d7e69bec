"""The shapes of requests. They validate, and they are the source of the OpenAPI document."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, StringConstraints

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class Strict(BaseModel):
    """Unknown fields are errors; types are not guessed."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class SubmitApplication(Strict):
    """Body of ``POST /applications``."""

    candidate: Name = Field(description="Who applies.")
    payload: dict[str, Any] = Field(description="The application itself, any JSON object.")
    role: Name = Field("general", description="What they apply for; each has a leaderboard.")
    priority: int = Field(0, ge=-100, le=100, description="Higher runs first among your jobs.")
    execute_at: AwareDatetime | None = Field(None, description="Not before this time.")
    not_after: AwareDatetime | None = Field(None, description="Not started after this time.")
