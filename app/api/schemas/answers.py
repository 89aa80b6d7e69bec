"""Schemas of answers about jobs, applications, schedules and problems.

They describe answers but do not serialise them: hot paths write their bytes themselves, and tests
check that these match. Fields may be added at any time, so clients must ignore unknown ones.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field, create_model

from app.policy.wait_reasons import WaitReason
from app.tenants.ticks import CatchUp, Overlap
from models.jobs.states import ApplicationStatus, FailureClass, JobStatus


def model(name: str, description: str, **fields: Any) -> type[BaseModel]:
    """The schema of a small answer that no other refers to; all its fields are required."""
    required: dict[str, Any] = {field: (kind, ...) for field, kind in fields.items()}
    return create_model(name, __doc__=description, **required)


class FieldProblem(BaseModel):
    """An invalid field."""

    field: str = Field(description="Path in the body, or name of a parameter or header.")
    message: str


class Problem(BaseModel):
    """An error, as defined by RFC 9457."""

    type: str = Field(description="A URI: of the code, or a registered one.")
    title: str
    status: int
    code: str = Field(description="Stable: rely on this.")
    detail: str = Field(description="Human-readable; the wording may change.")
    errors: list[FieldProblem] = Field(default=[], min_length=1, max_length=20)
    violated_policies: list[str] = Field(
        default=[],
        alias="violated-policies",
        description="The limits that a 429 is about: default (the submission rate), requests (the"
        " rate of others), queue-depth, idempotency-keys, blob-bytes or event-streams.",
    )


class Failure(BaseModel):
    """Why a run failed."""

    class_: FailureClass = Field(alias="class")
    message: str | None


class Attempt(BaseModel):
    """A run that ended without a result."""

    lease: int
    worker: str | None
    started_at: datetime | None
    ended_at: datetime | None
    status: str
    error: Failure | None


class LogLine(BaseModel):
    """A line that a job logged."""

    at: datetime
    level: str
    message: str


class Run(Attempt):
    """A run of a job, with what it logged."""

    status: str = Field(
        description="What the run made of the job; `running` while it runs, `queued` if it was"
        " handed back."
    )
    traceback: str | None = Field(description="Where it failed; the end of a long one.")
    log: list[LogLine] = Field(description="The newest lines of `ctx.log`, from level info on.")
    log_dropped: int = Field(description="Number of older lines that were not kept.")


class Work(BaseModel):
    """Fields of jobs and applications."""

    id: UUID
    type: str
    tenant: str
    pool: str
    execute_at: datetime | None
    not_after: datetime | None
    dispatched_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    progress: Any = Field(description="What the job last reported; any JSON.")
    error: Failure | None
    cancel_requested_at: datetime | None


class JobEntry(Work):
    """A job in a list."""

    priority: int
    status: JobStatus
    attempt: int = Field(description="Attempts used up.")
    crashes: int
    created_at: datetime


class Tried(JobEntry):
    """A job with its runs that ended without a result, newest last."""

    replays: int
    slot_seconds: float = Field(description="Of all runs that have ended.")
    resubmitted_from: UUID | None = Field(description="As the submission says.")
    attempts: list[Attempt] = Field(
        description="Runs without a result, also those that used no attempt."
    )


class DeadLetter(Tried):
    """A job that failed for good."""


class Job(Tried):
    """A job."""

    result: Any = Field(description="The job's return value; any JSON.")


class Mark(BaseModel):
    """The mark for a criterion of the rubric."""

    key: str
    title: str
    weight: int = Field(description="Its share of the score, in percent.")
    mark: float = Field(description="0 to 100.")


class Record(BaseModel):
    """How a score was computed."""

    model: str | None
    rubric: str | None = Field(description="Hash of the rubric.")
    input: str | None = Field(description="SHA-256 of the application that was scored.")
    dropped_quotes: int | None = Field(
        description="Quotes by the model that do not occur in the application, or have fewer than"
        " three letters and digits."
    )


class Application(Work):
    """An application; fields of its job are null once that is retired."""

    priority: int | None
    status: ApplicationStatus
    attempt: int | None
    crashes: int | None
    created_at: datetime | None
    candidate: str
    role: str
    score: float | None
    rank: int | None = Field(description="1 is best; ties share one.")
    rationale: str | None
    criteria: list[Mark] | None = Field(description="The score is the sum of mark × weight / 100.")
    evidence: dict[str, list[str]] | None = Field(
        description="Quotes from the application, by criterion."
    )
    record: Record | None
    result: Any


class AcceptedJob(BaseModel):
    """An accepted job."""

    id: UUID
    status: Literal["queued", "scheduled"]


class ItemProblem(Problem):
    """The problem of an item of a batch."""

    index: int


class RefusedItem(BaseModel):
    """A rejected item."""

    error: ItemProblem


class BatchResults(BaseModel):
    """The result of each item, in order."""

    accepted: int
    rejected: int
    results: list[AcceptedJob | RefusedItem]


class LeaderboardEntry(BaseModel):
    """A scored application."""

    rank: int
    id: UUID
    candidate: str
    score: float
    rationale: str | None
    scored_at: datetime | None


class Wait(BaseModel):
    """Why a job has not started."""

    id: UUID
    status: JobStatus
    pool: str
    reason: WaitReason
    code: Literal["POOL_CONCURRENCY_CAP"] | None = Field(
        description="Of the limit that holds it back, if one does."
    )
    detail: str
    also: list[WaitReason]
    position: int | None = Field(description="Your own jobs ahead of it; null unless it is queued.")
    at_least: bool = Field(description="Whether the position may be higher.")
    predicted_start: datetime | None
    earliest_start: datetime | None = Field(
        description="With latest_start, the range in which about two thirds of such jobs start."
    )
    latest_start: datetime | None = Field(
        description="Null without a prediction, and while its circuit is not closed."
    )
    predicted_wait_seconds: float | None


class ScheduleEntry(BaseModel):
    """A schedule in a list."""

    id: UUID
    name: str
    cron: str
    timezone: str
    overlap: Overlap
    catch_up: CatchUp
    type: str
    priority: int
    paused: bool
    next_at: datetime | None
    last_at: datetime | None
    last_job_id: UUID | None
    made: int
    skipped: int
    created_at: datetime


class Schedule(ScheduleEntry):
    """A schedule with the payload of its jobs."""

    payload: Any


#: Fields of what is being stopped.
STOPPING = {"id": UUID, "cancel_requested_at": datetime}

AcceptedApplication = model(
    "AcceptedApplication", "An accepted application.", id=UUID, status=Literal["pending"]
)
CancelledJob = model("CancelledJob", "A cancelled job.", id=UUID, status=Literal["cancelled"])
StoppingJob = model(
    "StoppingJob", "A running job that is being stopped.", status=Literal["running"], **STOPPING
)
WithdrawnApplication = model(
    "WithdrawnApplication", "A withdrawn application.", id=UUID, status=Literal["withdrawn"]
)
StoppingApplication = model(
    "StoppingApplication", "Being scored, and being stopped.", status=Literal["scoring"], **STOPPING
)
ErasedApplication = model(
    "ErasedApplication",
    "An application that is erased, or being erased.",
    id=UUID,
    status=Literal["erased", "erasing"],
    requested_at=datetime,
    erased_at=datetime | None,
)
MoreResubmitted = model(
    "MoreResubmitted",
    "Jobs that were submitted in the place of an application and are not in its export, oldest"
    " first. Each id has an export of its own. `at_least`: there are more than are named.",
    count=int,
    at_least=bool,
    ids=list[UUID],
)
ExportedApplication = model(
    "ExportedApplication",
    "Everything that is stored of an application, by table. `job` is null once it is retired;"
    " `resubmitted` are jobs that were submitted in its place, oldest first, `more_resubmitted`"
    " those that were too many or too large. `application` is null if it is such a job and no"
    " application. `events` are the newest; the feed has the older ones.",
    id=UUID,
    application=dict[str, Any] | None,
    job=dict[str, Any] | None,
    checkpoint=dict[str, Any] | None,
    attempts=list[dict[str, Any]],
    logs=list[dict[str, Any]],
    events=list[dict[str, Any]],
    older_events=int,
    idempotency_keys=list[dict[str, Any]],
    resubmitted=list[dict[str, Any]],
    more_resubmitted=MoreResubmitted,
)
Replayed = model(
    "Replayed", "Dead letters queued again.", replayed=int, skipped=int, ids=list[UUID]
)
ReplayProgress = model(
    "ReplayProgress",
    "A replay of many dead letters, which goes on in the background.",
    id=UUID,
    state=Literal["running", "finished", "cancelled"],
    total=int,
    done=int,
    reason=str | None,
    requested_at=datetime,
    finished_at=datetime | None,
)
Runs = model(
    "Runs",
    "The runs of a job, oldest first: the newest 100 without a result, and the one that runs or"
    " succeeded; logs of the last 25 leases.",
    runs=list[Run],
)
Discarded = model(
    "Discarded", "Discarded dead letters.", discarded=int, skipped=int, ids=list[UUID]
)
Jobs = model("Jobs", "A page of jobs, newest first.", jobs=list[JobEntry])
DeadLetters = model(
    "DeadLetters", "A page of dead letters, newest job first.", dead_letters=list[DeadLetter]
)
Leaderboard = model(
    "Leaderboard", "Scores of a role, best first.", role=str, entries=list[LeaderboardEntry]
)
Schedules = model("Schedules", "A page of schedules, by name.", schedules=list[ScheduleEntry])
