"""The shapes of answers about jobs, applications and what goes wrong.

They describe and do not serialise; ``app.api.openapi`` says why. Fields may be added to an
answer at any time, so clients must not stumble over one they do not know.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any, Literal
from uuid import UUID

from pydantic import BaseModel, Field

from app.policy.wait_reasons import WaitReason
from models.jobs.states import ApplicationStatus, FailureClass, JobStatus


class FieldProblem(BaseModel):
    """One field that is not as it should be."""

    field: str = Field(description="Path in the body, name of a parameter or of a header.")
    message: str


class Problem(BaseModel):
    """What went wrong, as RFC 9457 has it."""

    type: str = Field(description="The code as a URN.")
    title: str
    status: int
    code: str = Field(description="Stable: go by this.")
    detail: str = Field(description="For people; the words may change.")
    errors: list[FieldProblem] = Field(default=[], min_length=1, max_length=20)


class Failure(BaseModel):
    """Why a run gave no result."""

    class_: FailureClass = Field(alias="class")
    message: str | None


class Attempt(BaseModel):
    """A run that gave no result."""

    lease: int
    worker: str | None
    started_at: datetime | None
    ended_at: datetime | None
    status: str
    error: Failure | None


class Work(BaseModel):
    """What jobs and applications have in common."""

    id: UUID
    type: str
    tenant: str
    pool: str
    execute_at: datetime | None
    not_after: datetime | None
    dispatched_at: datetime | None
    started_at: datetime | None
    finished_at: datetime | None
    progress: Any = Field(description="What the job told last; any JSON.")
    error: Failure | None
    cancel_requested_at: datetime | None


class JobEntry(Work):
    """A job in a list."""

    priority: int
    status: JobStatus
    attempt: int = Field(description="Tries that are spent.")
    crashes: int
    created_at: datetime


class Tried(JobEntry):
    """A job with the runs that gave no result, newest last."""

    replays: int
    slot_seconds: float
    attempts: list[Attempt]


class DeadLetter(Tried):
    """A job that failed for good."""


class Job(Tried):
    """A job."""

    result: Any = Field(description="What the type gives; any JSON.")


class Mark(BaseModel):
    """What a criterion of the rubric was given."""

    key: str
    title: str
    weight: int = Field(description="Its share of the score, in percent.")
    mark: float = Field(description="0 to 100.")


class Record(BaseModel):
    """What a score was made by, and from."""

    model: str | None
    rubric: str | None = Field(description="Hash of the rubric.")
    input: str | None = Field(description="SHA-256 of the application that was scored.")
    dropped_quotes: int | None = Field(
        description="Quotes that the model gave and that do not occur in the application, or have"
        " fewer than three letters and digits."
    )


class Application(Work):
    """An application; what only its job knew is null once that is retired."""

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
        description="Quotes by criterion, each of which occurs in the application."
    )
    record: Record | None
    result: Any


class AcceptedJob(BaseModel):
    """A job that is kept and will run."""

    id: UUID
    status: Literal["queued", "scheduled"]


class AcceptedApplication(BaseModel):
    """An application that is kept and will be scored."""

    id: UUID
    status: Literal["pending"]


class ItemProblem(Problem):
    """What is wrong with an item of a batch."""

    index: int


class RefusedItem(BaseModel):
    """An item that was not taken."""

    error: ItemProblem


class BatchResults(BaseModel):
    """What became of each item, in their order."""

    accepted: int
    rejected: int
    results: list[AcceptedJob | RefusedItem]


class CancelledJob(BaseModel):
    """A job that will not run."""

    id: UUID
    status: Literal["cancelled"]


class StoppingJob(BaseModel):
    """A job that runs and was asked to stop."""

    id: UUID
    status: Literal["running"]
    cancel_requested_at: datetime


class WithdrawnApplication(BaseModel):
    """An application that will not be scored."""

    id: UUID
    status: Literal["withdrawn"]


class StoppingApplication(BaseModel):
    """An application that is being scored; its job was asked to stop."""

    id: UUID
    status: Literal["scoring"]
    cancel_requested_at: datetime


class Jobs(BaseModel):
    """A page of jobs, newest first."""

    jobs: list[JobEntry]


class DeadLetters(BaseModel):
    """A page of dead letters, newest job first."""

    dead_letters: list[DeadLetter]


class Replayed(BaseModel):
    """Dead letters that are in the line again."""

    replayed: int
    skipped: int
    ids: list[UUID]


class LeaderboardEntry(BaseModel):
    """A scored application."""

    rank: int
    id: UUID
    candidate: str
    score: float
    rationale: str | None
    scored_at: datetime | None


class Leaderboard(BaseModel):
    """Scored applications of a role, best first."""

    role: str
    entries: list[LeaderboardEntry]


class Wait(BaseModel):
    """Why a job has not started."""

    id: UUID
    status: JobStatus
    pool: str
    reason: WaitReason
    detail: str
    also: list[WaitReason]
    position: int | None
    at_least: bool = Field(description="Whether the position may be higher.")
    predicted_start: datetime | None
    predicted_wait_seconds: float | None
