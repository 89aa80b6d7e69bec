"""What the scheduler keeps: express lanes, arrivals, shares, predictions, recurring jobs."""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import UniqueConstraint, text
from sqlalchemy.orm import Mapped, mapped_column

from models.schema.base import Base, Count, Count2, Count4, Id, Json, Now, Sum, index


class ExpressLane(Base, table="express_lanes", fillfactor=50):
    """The scheduler's permission to dispatch in the request, while a pool has no queue."""

    pool: Mapped[str] = mapped_column(primary_key=True)
    #: Jobs that may still be dispatched on this permission.
    credit: Mapped[Count4]
    granted_at: Mapped[Now]


class Arrival(
    Base,
    table="arrivals",
    autovacuum_vacuum_threshold=200,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_cost_delay=0,
):
    """Jobs were queued in this lane. Written by a trigger, removed by the scheduler."""

    #: The table has no key: a lane may be noted twice. The mapper wants one.
    pool: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    dependency: Mapped[str] = mapped_column(primary_key=True)


class Share(Base, table="shares", fillfactor=50, autovacuum_vacuum_threshold=200):
    """How far a tenant's fair share has come in a pool; tenant 0 is the pool's virtual time."""

    tenant_id: Mapped[int] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)
    #: Virtual time of what it was served, without what is in flight.
    pass_: Mapped[float] = mapped_column("pass")
    #: Usage that is in it: all before this day, and so much of the day.
    counted_day: Mapped[date]
    counted_seconds: Mapped[float]
    #: In effect, with floors and slices.
    weight: Mapped[float]
    in_flight: Mapped[Count4]
    started_per_second: Mapped[Sum]
    updated_at: Mapped[Now]


class Prediction(Base, table="predictions", fillfactor=70):
    """When a waiting job was predicted to start, to be compared with when it did."""

    job_id: Mapped[Id] = mapped_column(primary_key=True)
    pool: Mapped[str]
    made_at: Mapped[Now]
    wait_seconds: Mapped[float]


class ScheduleRow(Base, table="schedules", fillfactor=70):
    """A recurring job."""

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[int]
    name: Mapped[str]
    cron: Mapped[str]
    timezone: Mapped[str]
    #: ``allow``, or ``skip`` a tick while the job of the one before has not ended.
    overlap: Mapped[str]
    #: Ticks missed in an outage: ``none``, the last ``one`` or ``all`` of them are made up for.
    catch_up: Mapped[str]
    type: Mapped[str]
    payload: Mapped[Json]
    priority: Mapped[Count2]
    paused: Mapped[bool] = mapped_column(server_default=text("false"))
    #: None if no tick will ever come.
    next_at: Mapped[datetime | None]
    last_at: Mapped[datetime | None]
    last_job_id: Mapped[Id | None]
    #: Ticks that became jobs, and ticks that could not.
    made: Mapped[Count]
    skipped: Mapped[Count]
    created_at: Mapped[Now]

    __table_args__ = (
        UniqueConstraint("tenant_id", "name"),
        index("schedules_next", "next_at", "NOT paused"),
    )
