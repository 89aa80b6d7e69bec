"""Job types that say something, to be found in the log."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import BaseModel, field_validator

from tasks.registry import job_type
from tasks.runtime.context import JobContext


class Talk(BaseModel):
    """What ``talk`` takes; it trips over one word."""

    word: str

    @field_validator("word")
    @classmethod
    def _is_no_trip(cls, word: str) -> str:
        if word == "trip":
            raise KeyError(word)
        return word


@job_type("talk", pool="medium", timeout=20, schema=Talk)
def talk(ctx: JobContext, payload: Any) -> Any:
    """Says its word through the context and through a library's logger."""
    ctx.log.info("the job says %s", payload["word"])
    logging.getLogger("a.library").warning("the library says %s", payload["word"])
    return payload
