"""The processes of a deployment, and how its pools did."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import text

from models.schema.base import (
    Base,
    Count,
    Count4,
    Int4,
    Mapped,
    Now,
    Sum,
    TextOrEmpty,
    mapped_column,
)


class Process(Base, table="processes"):
    """A process of the stack that is alive, and the state of its slots and connection pool."""

    name: Mapped[str] = mapped_column(primary_key=True)
    #: ``api``, ``scheduler`` or ``worker``.
    kind: Mapped[str]
    pools: Mapped[list[str]] = mapped_column(server_default="{}")
    slots: Mapped[Count4]
    busy: Mapped[Count4]
    draining: Mapped[bool] = mapped_column(server_default=text("false"))
    db_size: Mapped[Count4]
    db_in_use: Mapped[Count4]
    db_waiters: Mapped[Count4]
    started_at: Mapped[Now]
    heartbeat_at: Mapped[Now]
    #: Process that it was forked by and stops with; None if it was not forked.
    parent: Mapped[str | None]
    #: Celery's name of the worker, which forked processes share; of API processes, the name of
    #: their server.
    node: Mapped[TextOrEmpty]
    #: When it was asked to end once its jobs have; it reads this with its next heartbeat.
    drain_requested_at: Mapped[datetime | None]
    #: See ``models.presence``.
    renewed_at: Mapped[datetime | None]


class LeaderRow(Base, table="leaders"):
    """The process that may act in a role, fenced by an epoch."""

    role: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    #: Raised by every change of holder.
    epoch: Mapped[int]
    expires_at: Mapped[datetime]
    #: When the holder last reached the broker.
    broker_seen_at: Mapped[datetime | None]


class DesiredWorkers(Base, table="desired_workers", fillfactor=50):
    """How many workers a pool should have, as the autoscaler decided."""

    pool: Mapped[str] = mapped_column(primary_key=True)
    workers: Mapped[Int4]
    reason: Mapped[str]
    #: What it was decided by: live workers, jobs that wait for a slot and for how long the
    #: oldest has, share of the slots in use.
    living: Mapped[Count4]
    depth: Mapped[Count]
    oldest_seconds: Mapped[Sum]
    utilisation: Mapped[Sum]
    changed_at: Mapped[Now]
    updated_at: Mapped[Now]


class PoolSample(Base, table="pool_samples"):
    """A pool at one moment: what the console's charts are drawn from.

    Counters begin with the deployment and only grow: a rate is the difference of two of them.
    """

    #: Seconds from one sample to the next: 5 for the last minutes, 300 for the last day.
    step: Mapped[Int4] = mapped_column(primary_key=True)
    pool: Mapped[str] = mapped_column(primary_key=True)
    #: The beginning of the step in which it was taken, by the database's clock.
    at: Mapped[datetime] = mapped_column(primary_key=True)
    #: Jobs that were submitted, replays included, and how they ended.
    submitted: Mapped[int]
    succeeded: Mapped[int]
    dead: Mapped[int]
    cancelled: Mapped[int]
    expired: Mapped[int]
    #: Jobs in these states then.
    scheduled: Mapped[int]
    queued: Mapped[int]
    dispatched: Mapped[int]
    running: Mapped[int]
    #: How long the oldest queued job had waited; 0 if there was none.
    oldest_seconds: Mapped[float]
    #: Of the live workers that serve all tenants: slots in use, slots, processes.
    busy: Mapped[Int4]
    slots: Mapped[Int4]
    workers: Mapped[Int4]
