"""Tables of the scheduler: express lanes, arrivals, shares, predictions, replays, schedules."""

from __future__ import annotations

from datetime import date, datetime

from sqlalchemy import ARRAY, Identity, UniqueConstraint, Uuid, text

from models.schema.base import (
    Base,
    Count,
    Count2,
    Count4,
    Id,
    Int2,
    Int4,
    Json,
    Mapped,
    Now,
    Sum,
    index,
    mapped_column,
)


class ExpressLane(Base, table="express_lanes", fillfactor=50):
    """The scheduler's permission to dispatch in the request, while a pool has no queue."""

    pool: Mapped[str] = mapped_column(primary_key=True)
    #: Jobs that may still be dispatched on this permission.
    credit: Mapped[Count4]
    granted_at: Mapped[Now]
    #: Jobs that it may bring in flight: one for each slot of the pool's shared workers, and for
    #: those that will soon be free; None: not known.
    slots: Mapped[Int4 | None]
    #: Workers that would run the next jobs at once: see `models.jobs.offer`.
    offers: Mapped[list[str]] = mapped_column(server_default="{}")


class Arrival(
    Base,
    table="arrivals",
    autovacuum_vacuum_threshold=200,
    autovacuum_vacuum_scale_factor=0,
    autovacuum_vacuum_cost_delay=0,
):
    """Jobs were queued in this lane. Written by a trigger, removed by the scheduler."""

    pool: Mapped[str]
    tenant_id: Mapped[int]
    dependency: Mapped[str]
    id: Mapped[int] = mapped_column(Identity(always=True), primary_key=True)
    #: Where in the lane: their priority, and the lowest and highest of their ids.
    priority: Mapped[Int2 | None]
    first_id: Mapped[Id | None]
    last_id: Mapped[Id | None]


class Share(Base, table="shares", fillfactor=50, autovacuum_vacuum_threshold=200):
    """A tenant's pass in a pool, for the next leader; tenant 0 has the pool's virtual time."""

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


class ReplayRow(Base, table="replays", fillfactor=50):
    """Dead letters of a tenant that are replayed little by little."""

    id: Mapped[Id] = mapped_column(primary_key=True)
    tenant_id: Mapped[int]
    #: Of what was asked for: equal requests are one while it runs.
    digest: Mapped[str]
    #: Which: these, or all that match and died no later than ``before``; at most so many.
    ids: Mapped[list[str] | None] = mapped_column(ARRAY(Uuid(as_uuid=False)))
    type: Mapped[str | None]
    error_class: Mapped[str | None]
    before: Mapped[datetime]
    most: Mapped[int | None]
    #: ``running``, ``finished`` or ``cancelled``.
    state: Mapped[str] = mapped_column(server_default="running")
    #: How many matched at first, and how many were queued again.
    total: Mapped[Count]
    done: Mapped[Count]
    #: Where the walk over the ids is, and whether it has to begin again at its end.
    position: Mapped[Id]
    again: Mapped[bool] = mapped_column(server_default=text("false"))
    #: Why it does not go on faster: the code of a limit, or an error.
    reason: Mapped[str | None]
    requested_at: Mapped[Now]
    worked_at: Mapped[Now]
    finished_at: Mapped[datetime | None]

    __table_args__ = (
        index("replays_running", "tenant_id, digest", "state = 'running'", unique=True),
        index("replays_next", "worked_at", "state = 'running'"),
    )


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
