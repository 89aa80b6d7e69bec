"""The shapes of requests. They validate, and they are the source of the OpenAPI document."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, TypedDict

from pydantic import (
    AwareDatetime,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from models.jobs.states import FailureClass

#: White space around it is not a part of it, so that there has to be something else.
Name = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=200),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"\S"}),
]

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


class Timing(Strict):
    """When a job may run, and which of its tenant's first."""

    priority: int = Field(0, ge=-100, le=100, description="Higher runs first among your jobs.")
    execute_at: Moment | None = Field(None, description="Not before this time.")
    not_after: Moment | None = Field(None, description="Not started after this time.")
    jitter: bool = Field(
        True, description="Whether a time over an hour away may move by up to a minute."
    )


class TimingArguments(TypedDict):
    """The fields of ``Timing``, as intake takes them."""

    priority: int
    execute_at: datetime | None
    not_after: datetime | None
    jitter: bool


def timing_of(body: Timing) -> TimingArguments:
    """When a job may run, as arguments of ``job_submission``."""
    return {
        "priority": body.priority,
        "execute_at": body.execute_at,
        "not_after": body.not_after,
        "jitter": body.jitter,
    }


class SubmitApplication(Timing):
    """Body of ``POST /applications``."""

    candidate: Name = Field(description="Who applies.", examples=["Ada Lovelace"])
    payload: dict[str, Any] = Field(
        description="The application itself, any JSON object.", examples=[{"years": 12}]
    )
    role: Name = Field("general", description="What they apply for; each has a leaderboard.")


class SubmitJob(Timing):
    """Body of ``POST /jobs``, and an item of a batch."""

    type: str = Field(description="A registered job type.", examples=["echo"])
    payload: Any = Field(
        default_factory=dict,
        description="Any JSON that the type takes; {} if left out.",
        examples=[{"hello": "world"}],
    )


#: Most jobs in one batch, most ids and most matches in one replay.
MOST_JOBS = 1_000
MOST_REPLAYS = 10_000


class SubmitBatch(Strict):
    """Body of ``POST /jobs/batch``. Items are validated one by one."""

    jobs: list[Any] = Field(min_length=1, max_length=MOST_JOBS)


#: Checked by the view, which tells the place of every wrong one.
Id = Annotated[str, WithJsonSchema({"type": "string", "format": "uuid"})]


class ReplayFilter(Strict):
    """Which dead letters to replay; what is left out does not matter."""

    type: str | None = Field(None, max_length=100)
    error_class: FailureClass | None = None
    before: Moment | None = Field(None, description="Died no later than this; now if left out.")


class Replay(Strict):
    """Body of ``POST /dead-letters/replay``: either ids or a filter."""

    ids: list[Id] | None = Field(None, min_length=1, max_length=MOST_JOBS)
    filter: ReplayFilter | None = None
    limit: int = Field(MOST_REPLAYS, ge=1, le=MOST_REPLAYS, description="At most so many.")
