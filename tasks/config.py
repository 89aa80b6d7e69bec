"""Settings of the workers and the jobs they run, read once from the environment."""

from __future__ import annotations

from functools import cache
from typing import Literal

from pydantic import Field, SecretStr

from models.settings import DatabaseSettings


class TaskSettings(DatabaseSettings):
    """Settings of a worker beyond those of the database."""

    #: What scores applications: a 1.5-second simulation or Claude.
    scorer: Literal["simulated", "claude"] = "simulated"
    #: How long the simulated scorer takes.
    score_seconds: float = Field(default=1.5, ge=0)
    #: The model of the Claude scorer.
    claude_model: str = "claude-haiku-5-5"
    #: Where the Messages API is; empty means the SDK's default.
    claude_base_url: str = ""
    #: API key for Claude; empty means the SDK's own ``ANTHROPIC_API_KEY``.
    claude_api_key: SecretStr = SecretStr("")
    #: How long one call to Claude may take, connection included.
    claude_timeout_seconds: float = Field(default=45.0, gt=0)
    #: How long a cancelled job may clean up, or a cooperative one continue, before it is stopped by
    #: force.
    cancel_grace_seconds: float = Field(default=300.0, ge=0)
    #: Whether the types to try things out with exist: echo, sleep, count, fail and crash, which
    #: kills the worker it runs in.
    demo_types: bool = False
    #: Comma-separated modules that register more job types.
    job_modules: str = ""


@cache
def task_settings() -> TaskSettings:
    return TaskSettings()
