"""``score_application``: scores a candidate's application and puts it on the leaderboard."""

from __future__ import annotations

from dataclasses import asdict
from typing import Annotated, Any

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    StringConstraints,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

from tasks.context import JobContext
from tasks.registry import job_type
from tasks.scorers.configured import current_scorer
from tasks.scorers.protocol import ApplicationText

Name = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


def require_text_or_object(value: Any) -> Any:
    """Reject other JSON; with a union of types there would be one error for each of them."""
    if not isinstance(value, str | dict):
        raise PydanticCustomError("application", "Input should be a text or an object")
    return value


#: The application itself.
TextOrObject = Annotated[
    Any,
    AfterValidator(require_text_or_object),
    WithJsonSchema({"anyOf": [{"type": "string"}, {"type": "object"}]}),
]


class ApplicationPayload(BaseModel):
    """The payload of the job."""

    model_config = ConfigDict(extra="forbid", strict=True)

    candidate: Name
    role: Name = "general"
    payload: TextOrObject


#: The leaderboard is written by the statement that settles the job: never one without
#: the other, and never twice. The record goes with the score, since both outlive the job; it
#: contains the rationale, which is not stored beside it if it is encrypted.
PROJECT_SCORE = """
    UPDATE applications AS application
    SET score = (settled.result ->> 'score')::numeric,
        rationale = CASE WHEN NOT settled.encrypted THEN settled.result ->> 'rationale' END,
        record = settled.stored_result,
        scored_at = now()
    FROM settled
    WHERE settled.type = 'score_application' AND settled.status = 'succeeded'
      AND application.id = settled.id
"""


@job_type(
    "score_application",
    pool="medium",
    timeout=60,
    dependency="claude",
    schema=ApplicationPayload,
    # While the worker starts, so that no job pays for it.
    prepare=lambda: current_scorer().prepare(),
    project=PROJECT_SCORE,
)
def score_application(ctx: JobContext, sent: ApplicationPayload) -> Any:
    application = ApplicationText(sent.candidate, sent.role, sent.payload)
    score = current_scorer().score(application, ctx.report_quota)
    ctx.charge_tokens(score.usage.input_tokens, score.usage.output_tokens)
    return asdict(score)
