"""What the tables share: the base class, the types of columns, indexes."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import date, datetime
from decimal import Decimal
from typing import (
    Annotated,
    Any,
    ClassVar,
    Generic,
    TypeVar,
    get_args,
    get_origin,
    get_type_hints,
)

from sqlalchemy import (
    ARRAY,
    JSON,
    BigInteger,
    Boolean,
    Column,
    Date,
    DateTime,
    Double,
    Index,
    Integer,
    LargeBinary,
    MetaData,
    Numeric,
    SmallInteger,
    Table,
    Text,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ENUM
from sqlalchemy.types import TypeEngine, UserDefinedType

from models.jobs.states import JobStatus


class TransactionId(UserDefinedType[int]):
    """PostgreSQL's ``xid8``: a number that only rises, one per transaction."""

    cache_ok = True

    def get_col_spec(self, **_: Any) -> str:
        return "xid8"


T = TypeVar("T")


class Mapped(Generic[T]):
    """Annotation of a column: the Python type of its values, with ``| None`` where it has none."""


@dataclass(frozen=True, eq=False, slots=True)
class ColumnSpec:
    """Arguments of a column."""

    arguments: tuple[Any, ...]
    options: dict[str, Any]


def mapped_column(*arguments: Any, **options: Any) -> Any:
    """What the annotation of a column does not say, as SQLAlchemy's ``Column`` takes it."""
    return ColumnSpec(arguments, options)


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


#: Types of columns whose Python type says it all.
TYPES: dict[Any, Any] = {
    str: Text,
    int: BigInteger,
    float: Double,
    bool: Boolean,
    bytes: LargeBinary,
    date: Date,
    datetime: DateTime(timezone=True),
    Decimal: Numeric(5, 2),
    list[str]: ARRAY(Text),
}


class Base:
    """Every table of Fairline: a subclass is one, its annotations are the columns.

    As with SQLAlchemy's declarative base, but without its mapper: rows are read by statements, and
    the ORM would be 8 MB in every process.
    """

    metadata: ClassVar = MetaData()
    __table__: ClassVar[Table]

    def __init_subclass__(cls, table: str, **storage: float) -> None:
        """A table of this name, with these storage parameters."""
        options = {name: str(value) for name, value in storage.items()} or None
        hints = get_type_hints(cls, include_extras=True)
        columns = [column(name, hints[name], vars(cls).get(name)) for name in cls.__annotations__]
        indexes = getattr(cls, "__table_args__", ())
        cls.__table__ = Table(table, cls.metadata, *columns, *indexes, postgresql_with=options)


def column(name: str, hint: Any, own: ColumnSpec | None) -> Column[Any]:
    """The column that ``name: Mapped[…] = mapped_column(…)`` declares."""
    [declared] = get_args(hint)
    nullable = type(None) in get_args(declared)
    if nullable:
        [declared] = (each for each in get_args(declared) if each is not type(None))
    common = declared.__metadata__[0] if get_origin(declared) is Annotated else None
    arguments = own.arguments if own else ()
    if arguments and isinstance(arguments[0], str):  # its name is a word of Python
        name, arguments = arguments[0], arguments[1:]
    if not any(is_type(each) for each in arguments):
        arguments = (*(common.arguments if common else (TYPES[declared],)), *arguments)
    options = {**(common.options if common else {}), **(own.options if own else {})}
    return Column(name, *arguments, nullable=nullable, **options)


def is_type(argument: Any) -> bool:
    kind = argument if isinstance(argument, type) else type(argument)
    return issubclass(kind, TypeEngine)


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
