"""Job types that say something, to be found in the log."""

from __future__ import annotations

import logging
from typing import Any

from pydantic import BaseModel, field_validator

from tasks.context import JobContext
from tasks.registry import job_type


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
def talk(ctx: JobContext, said: Talk) -> Any:
    """Says its word through the context and through a library's logger."""
    ctx.log.info("the job says %s", said.word)
    logging.getLogger("a.library").warning("the library says %s", said.word)
    return said.model_dump()
