"""Schemas of requests: they validate bodies and are the source of the OpenAPI document."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any, Literal

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

from app.tenants.quotas import MOST as MOST_PER_MINUTE
from app.tenants.tenant import NAME as TENANT_NAME
from app.tenants.terms import BOUNDS, LIMIT_BOUNDS, MOST_TYPES, Change
from app.tenants.ticks import CatchUp, Overlap
from models.jobs.states import FailureClass
from tasks.jobs.score_application import TextOrObject

#: Surrounding white space is stripped, and something must be left.
Name = Annotated[
    str,
    StringConstraints(strip_whitespace=True, min_length=1, max_length=200),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 200, "pattern": r"\S"}),
]

RFC3339 = re.compile(r"\d{4}-\d\d-\d\d[Tt ]\d\d:\d\d:\d\d(\.\d+)?([Zz]|[+-]\d\d:\d\d)", re.ASCII)


def require_rfc3339(value: Any) -> Any:
    """Reject the other formats that Pydantic accepts, such as ``"1700000000"``."""
    if not isinstance(value, str) or not RFC3339.fullmatch(value):
        raise PydanticCustomError(
            "rfc3339", "Input should be an RFC 3339 time with a zone, such as 2030-01-31T12:00:00Z"
        )
    return value


#: Years that both PostgreSQL and Python can represent in any time zone.
Moment = Annotated[
    AwareDatetime,
    # Not strict: after the validator a string must still be converted.
    Field(ge=datetime(1970, 1, 1, tzinfo=UTC), lt=datetime(9999, 1, 1, tzinfo=UTC), strict=False),
    BeforeValidator(require_rfc3339),
]


class Strict(BaseModel):
    """Base of all bodies: unknown fields are errors, types are not coerced."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class Timing(Strict):
    """When a job may run, and its priority among its tenant's jobs."""

    priority: int = Field(0, ge=-100, le=100, description="Among your jobs, higher runs first.")
    execute_at: Moment | None = Field(
        None, description="When it is due. If that is over an hour ahead, see `jitter`."
    )
    not_after: Moment | None = Field(None, description="Does not start after this time.")
    jitter: bool = Field(
        True,
        description="Whether a time over an hour ahead is moved by up to a minute, either way.",
    )


#: Validated by the view, which reports the position of each invalid one.
Id = Annotated[str, WithJsonSchema({"type": "string", "format": "uuid"})]


class SubmitApplication(Timing):
    """Body of ``POST /applications``."""

    candidate: Name = Field(description="The applicant's name.", examples=["Ada Lovelace"])
    payload: TextOrObject = Field(
        description="The application itself: a text, or any JSON object.",
        examples=["5 years backend, Go and Python"],
    )
    role: Name = Field("general", description="The position; each role has a leaderboard.")


class SubmitJob(Timing):
    """Body of ``POST /jobs``, and an item of a batch."""

    type: str = Field(description="A registered job type.", examples=["echo"])
    payload: Any = Field(
        default_factory=dict,
        description="Any JSON that the type accepts; {} if omitted.",
        examples=[{"hello": "world"}],
    )
    resubmitted_from: Id | None = Field(
        None, description="The job that this one replaces, for the record."
    )


#: Maximum number of jobs in a batch and of ids in a replay; maximum number of jobs replayed.
MOST_JOBS = 1_000
MOST_REPLAYS = 10_000_000


class SubmitBatch(Strict):
    """Body of ``POST /jobs/batch``. Items are validated one by one."""

    jobs: list[Any] = Field(min_length=1, max_length=MOST_JOBS)


class ReplayFilter(Strict):
    """Which dead letters; omitted conditions always match."""

    type: str | None = Field(None, max_length=100)
    error_class: FailureClass | None = None
    before: Moment | None = Field(None, description="Died no later than this; by default now.")


class Replay(Strict):
    """Body of ``POST /dead-letters/replay``: either ids or a filter."""

    ids: list[Id] | None = Field(None, min_length=1, max_length=MOST_JOBS)
    filter: ReplayFilter | None = None
    limit: int | None = Field(
        None, ge=1, le=MOST_REPLAYS, description="Maximum number of jobs to replay; else all."
    )


#: Maximum number of dead letters discarded by one request.
MOST_DISCARDED = 10_000


class Discard(Strict):
    """Body of ``POST /dead-letters/discard``: either ids or a filter."""

    ids: list[Id] | None = Field(None, min_length=1, max_length=MOST_JOBS)
    filter: ReplayFilter | None = None
    limit: int = Field(
        MOST_DISCARDED, ge=1, le=MOST_DISCARDED, description="Maximum number of jobs to discard."
    )


CronText = Annotated[str, StringConstraints(max_length=200)]
ZoneName = Annotated[str, StringConstraints(max_length=100)]
#: Strict schemas reject strings for enum members unless told otherwise.
OverlapName = Annotated[Overlap, Field(strict=False)]
CatchUpName = Annotated[CatchUp, Field(strict=False)]
PRIORITY = Field(0, ge=-100, le=100, description="Priority of its jobs.")


class CreateSchedule(Strict):
    """Body of ``POST /schedules``."""

    name: Name = Field(description="Unique among your schedules.", examples=["nightly"])
    cron: CronText = Field(
        description="Minute, hour, day of month, month, day of week.", examples=["30 2 * * *"]
    )
    timezone: ZoneName = Field("UTC", description="An IANA time zone, such as Europe/Berlin.")
    overlap: OverlapName = Field(
        Overlap.ALLOW, description="Whether to tick while the previous job has not ended."
    )
    catch_up: CatchUpName = Field(
        CatchUp.ONE, description="Which ticks missed during an outage to make up for."
    )
    type: str = Field(description="A registered job type.", examples=["echo"])
    payload: Any = Field(default_factory=dict, description="Of each job; {} if omitted.")
    priority: int = PRIORITY
    paused: bool = False


class ChangeSchedule(CreateSchedule):
    """Body of ``PATCH /schedules/{id}``: omitted fields keep their values.

    The defaults are never used: ``model_fields_set`` has the fields that were sent.
    """

    name: Name = ""
    cron: CronText = ""
    type: str = ""


#: Schemas of terms and quotas, for the document; they are enforced where those are changed.
SCHEMAS = {
    name: {"minimum": least, "maximum": most}
    for name, (least, most) in (*BOUNDS.items(), *LIMIT_BOUNDS.items())
}
PER_MINUTE = {"exclusiveMinimum": 0, "maximum": MOST_PER_MINUTE}


def documented(description: str, schema: Any) -> Any:
    """An optional field whose schema is only documented."""
    return Field(None, description=description, json_schema_extra=schema)


class PoolTerms(Strict):
    """Limits in one pool; null clears."""

    in_flight: int | None = documented("Maximum number of jobs in flight.", SCHEMAS["in_flight"])
    reserved: int | None = documented("Dedicated slots (enterprise).", SCHEMAS["reserved"])
    depth: int | None = documented("Maximum number of waiting jobs.", SCHEMAS["depth"])


class TenantTerms(Strict):
    """Body of ``PATCH /operator/tenants/{name}``; omitted fields keep their values, null clears."""

    tier: Literal["free", "standard", "pro", "enterprise"] = "standard"
    tier_limits: bool = Field(
        True, description="Whether the tier's limits hold where the tenant has none of its own."
    )
    weight: float | None = documented("Overrides the tier's.", SCHEMAS["weight"])
    submit_per_second: float | None = documented(
        "Submissions per second.", SCHEMAS["submit_per_second"]
    )
    submit_burst: float | None = documented("Submissions at once.", SCHEMAS["submit_burst"])
    requests_per_second: float | None = documented(
        "Other requests per second to each API process.", SCHEMAS["requests_per_second"]
    )
    idempotency_keys: int | None = documented(
        "Maximum number of idempotency keys kept.", SCHEMAS["idempotency_keys"]
    )
    blob_bytes: int | None = documented(
        "Maximum number of bytes in the blob store.", SCHEMAS["blob_bytes"]
    )
    types: list[str] | None = documented(
        "Job types that it may submit; null: all.",
        {"maxItems": MOST_TYPES, "examples": [["score_application"]]},
    )
    limits: dict[str, PoolTerms | None] | None = Field(
        default_factory=dict, max_length=100, description="By pool; null clears all."
    )

    def change(self) -> Change:
        """The body as a change of terms."""
        given = self.model_fields_set - {"limits", "name"}
        return Change(
            {name: getattr(self, name) for name in given},
            {
                pool: dict.fromkeys(LIMIT_BOUNDS)
                if terms is None
                else {name: getattr(terms, name) for name in terms.model_fields_set}
                for pool, terms in (self.limits or {}).items()
            },
            clear_limits=self.limits is None,
        )


class NewTenant(TenantTerms):
    """Body of ``POST /operator/tenants``."""

    name: str = Field(
        examples=["globex"], json_schema_extra={"pattern": f"^{TENANT_NAME.pattern}$"}
    )


class NewKey(Strict):
    """Body of ``POST /operator/tenants/{name}/keys``; without a body the key has no label."""

    name: str = Field("", max_length=200, description="A label.")
    scopes: list[Literal["submit", "read"]] | None = Field(
        None, min_length=1, max_length=2, description="What it may do; by default all of it."
    )
    expires_at: Moment | None = Field(None, description="When it expires; by default never.")


class QuotaTerms(Strict):
    """Body of ``PUT /operator/quotas/{dependency}``; omitted limits are not declared."""

    requests_per_minute: float | None = documented(
        "Calls per minute.", {**PER_MINUTE, "examples": [60]}
    )
    tokens_in_per_minute: float | None = documented("Input tokens per minute.", PER_MINUTE)
    tokens_out_per_minute: float | None = documented("Output tokens per minute.", PER_MINUTE)
