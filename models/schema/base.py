"""What the tables share: the base class, the types of columns, indexes."""

from __future__ import annotations

from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    DateTime,
    Double,
    Index,
    Integer,
    Numeric,
    SmallInteger,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ENUM
from sqlalchemy.orm import DeclarativeBase, mapped_column
from sqlalchemy.types import UserDefinedType

from models.jobs.states import JobStatus


class TransactionId(UserDefinedType[int]):
    """PostgreSQL's ``xid8``: a number that only rises, one per transaction."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


Id = Annotated[str, mapped_column(Uuid(as_uuid=False))]
Int4 = Annotated[int, mapped_column(Integer)]
Int2 = Annotated[int, mapped_column(SmallInteger)]
Json = Annotated[Any, mapped_column(JSON)]
Status = Annotated[str, mapped_column(ENUM(*[each.value for each in JobStatus], name="job_status"))]
Xid = Annotated[int, mapped_column(TransactionId)]
#: With their defaults: 0, the time of the statement, the empty text.
Count = Annotated[int, mapped_column(BigInteger, server_default="0")]
Count4 = Annotated[int, mapped_column(Integer, server_default="0")]
Count2 = Annotated[int, mapped_column(SmallInteger, server_default="0")]
Sum = Annotated[float, mapped_column(Double, server_default="0")]
Now = Annotated[datetime, mapped_column(DateTime(timezone=True), server_default=text("now()"))]
TextOrEmpty = Annotated[str, mapped_column(Text, server_default="")]


class Base(DeclarativeBase):
    """Every table of Fairline."""

    type_annotation_map = {  # noqa: RUF012 - SQLAlchemy's own way
        str: Text,
        int: BigInteger,
        float: Double,
        datetime: DateTime(timezone=True),
        Decimal: Numeric(5, 2),
        list[str]: ARRAY(Text),
    }

    def __init_subclass__(cls, table: str, **storage: float) -> None:
        """A table of this name, with these storage parameters."""
        cls.__tablename__ = table
        options = {name: str(value) for name, value in storage.items()} or None
        indexes = getattr(cls, "__table_args__", ())
        cls.__table_args__ = (*indexes, {"postgresql_with": options})
        super().__init_subclass__()


def index(
    name: str, columns: str, where: str | None = None, include: str = "", unique: bool = False
) -> Index:
    """An index of the named columns, of the rows for which ``where`` holds."""
    return Index(
        name,
        *[text(each) if " " in each else each for each in columns.split(", ")],
        unique=unique,
        postgresql_include=include.split(", ") if include else [],
        postgresql_where=None if where is None else text(where),
    )
