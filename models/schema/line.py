"""What the scheduler keeps about the line: who waits, how far each has come, what comes again."""

from __future__ import annotations

from datetime import date, datetime
from typing import Any

from sqlalchemy import (
    JSON,
    BigInteger,
    Date,
    Double,
    Index,
    Integer,
    SmallInteger,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.orm import Mapped, mapped_column

from models.schema.base import Base, Moment


class ExpressLane(Base):
    """The scheduler's permission to dispatch in the request, while a pool has no line."""

    __tablename__ = "express_lanes"

    pool: Mapped[str] = mapped_column(Text, primary_key=True)
    #: Jobs that may still be dispatched on this permission.
    credit: Mapped[int] = mapped_column(Integer, server_default="0")
    granted_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = ({"postgresql_with": {"fillfactor": "50"}},)


class Arrival(Base):
    """A bell: jobs joined this line. Written by a trigger, taken away by the scheduler."""

    __tablename__ = "arrivals"

    #: The table has no key: a bell may ring twice. The mapper wants one.
    pool: Mapped[str] = mapped_column(Text, primary_key=True)
    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    dependency: Mapped[str] = mapped_column(Text, primary_key=True)

    __table_args__ = (
        {
            "postgresql_with": {
                "autovacuum_vacuum_threshold": "200",
                "autovacuum_vacuum_scale_factor": "0",
                "autovacuum_vacuum_cost_delay": "0",
            }
        },
    )


class Share(Base):
    """How far a tenant's fair share has come in a pool; tenant 0 is the pool's virtual time."""

    __tablename__ = "shares"

    tenant_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    pool: Mapped[str] = mapped_column(Text, primary_key=True)
    #: Virtual time of what it was served, without what is in flight.
    pass_: Mapped[float] = mapped_column("pass", Double)
    #: Usage that is in it: all before this day, and so much of the day.
    counted_day: Mapped[date] = mapped_column(Date)
    counted_seconds: Mapped[float] = mapped_column(Double)
    #: In effect, with floors and slices.
    weight: Mapped[float] = mapped_column(Double)
    in_flight: Mapped[int] = mapped_column(Integer, server_default="0")
    started_per_second: Mapped[float] = mapped_column(Double, server_default="0")
    updated_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = (
        {"postgresql_with": {"fillfactor": "50", "autovacuum_vacuum_threshold": "200"}},
    )


class Prediction(Base):
    """When a waiting job was said to start, to be compared with when it did."""

    __tablename__ = "predictions"

    job_id: Mapped[str] = mapped_column(Uuid(as_uuid=False), primary_key=True)
    pool: Mapped[str] = mapped_column(Text)
    made_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    wait_seconds: Mapped[float] = mapped_column(Double)

    __table_args__ = ({"postgresql_with": {"fillfactor": "70"}},)


class ScheduleRow(Base):
    """Work that comes again and again."""

    __tablename__ = "schedules"

    id: Mapped[str] = mapped_column(Uuid(as_uuid=False), primary_key=True)
    tenant_id: Mapped[int] = mapped_column(BigInteger)
    name: Mapped[str] = mapped_column(Text)
    cron: Mapped[str] = mapped_column(Text)
    timezone: Mapped[str] = mapped_column(Text)
    #: ``allow``, or ``skip`` a tick while the job of the one before has not ended.
    overlap: Mapped[str] = mapped_column(Text)
    #: Ticks missed in an outage: ``none``, the last ``one`` or ``all`` of them are made up for.
    catch_up: Mapped[str] = mapped_column(Text)
    type: Mapped[str] = mapped_column(Text)
    payload: Mapped[Any] = mapped_column(JSON)
    priority: Mapped[int] = mapped_column(SmallInteger, server_default="0")
    paused: Mapped[bool] = mapped_column(server_default=text("false"))
    #: None if no tick will ever come.
    next_at: Mapped[datetime | None] = mapped_column(Moment)
    last_at: Mapped[datetime | None] = mapped_column(Moment)
    last_job_id: Mapped[str | None] = mapped_column(Uuid(as_uuid=False))
    #: Ticks that became jobs, and ticks that could not.
    made: Mapped[int] = mapped_column(BigInteger, server_default="0")
    skipped: Mapped[int] = mapped_column(BigInteger, server_default="0")
    created_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = (
        UniqueConstraint("tenant_id", "name"),
        Index("schedules_next", "next_at", postgresql_where=text("NOT paused")),
        {"postgresql_with": {"fillfactor": "70"}},
    )
