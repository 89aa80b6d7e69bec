"""What every table shares: the base class and the types of columns."""

from __future__ import annotations

from typing import Any

from sqlalchemy import DateTime
from sqlalchemy.dialects.postgresql import ENUM
from sqlalchemy.orm import DeclarativeBase
from sqlalchemy.types import UserDefinedType

from models.jobs.states import JobStatus

Moment = DateTime(timezone=True)
status_type = ENUM(*[status.value for status in JobStatus], name="job_status")


class TransactionId(UserDefinedType[int]):
    """PostgreSQL's ``xid8``: a number that only rises, one a transaction."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


class Base(DeclarativeBase):
    """Every table of Fairline."""
