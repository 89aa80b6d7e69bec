"""The processes of a deployment: who lives, who leads, how many there should be."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import ARRAY, BigInteger, Double, Integer, Text, text
from sqlalchemy.orm import Mapped, mapped_column

from models.schema.base import Base, Moment


class Process(Base):
    """A process of the stack that is alive, and how it is doing."""

    __tablename__ = "processes"

    name: Mapped[str] = mapped_column(Text, primary_key=True)
    #: ``api``, ``scheduler`` or ``worker``.
    kind: Mapped[str] = mapped_column(Text)
    pools: Mapped[list[str]] = mapped_column(ARRAY(Text), server_default="{}")
    slots: Mapped[int] = mapped_column(Integer, server_default="0")
    busy: Mapped[int] = mapped_column(Integer, server_default="0")
    draining: Mapped[bool] = mapped_column(server_default=text("false"))
    db_size: Mapped[int] = mapped_column(Integer, server_default="0")
    db_in_use: Mapped[int] = mapped_column(Integer, server_default="0")
    db_waiters: Mapped[int] = mapped_column(Integer, server_default="0")
    started_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    heartbeat_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    #: Process that it was forked by and stops with; None if it stands alone.
    parent: Mapped[str | None] = mapped_column(Text)
    #: What Celery calls the worker, which a forked one shares with its brothers.
    node: Mapped[str] = mapped_column(Text, server_default="")
    #: Somebody wants it to end once its jobs have; it hears of it with its next heartbeat.
    drain_requested_at: Mapped[datetime | None] = mapped_column(Moment)


class LeaderRow(Base):
    """Who may act as the scheduler, fenced by an epoch."""

    __tablename__ = "leaders"

    role: Mapped[str] = mapped_column(Text, primary_key=True)
    holder: Mapped[str] = mapped_column(Text)
    #: Raised by every change of holder.
    epoch: Mapped[int] = mapped_column(BigInteger)
    expires_at: Mapped[datetime] = mapped_column(Moment)
    #: When the holder last reached the broker.
    broker_seen_at: Mapped[datetime | None] = mapped_column(Moment)


class DesiredWorkers(Base):
    """How many workers a pool should have, as the autoscaler sees it."""

    __tablename__ = "desired_workers"

    pool: Mapped[str] = mapped_column(Text, primary_key=True)
    workers: Mapped[int] = mapped_column(Integer)
    reason: Mapped[str] = mapped_column(Text)
    #: What it was decided by: living workers, jobs that wait for a slot and how long the oldest
    #: has, share of the slots in use.
    living: Mapped[int] = mapped_column(Integer, server_default="0")
    depth: Mapped[int] = mapped_column(BigInteger, server_default="0")
    oldest_seconds: Mapped[float] = mapped_column(Double, server_default="0")
    utilisation: Mapped[float] = mapped_column(Double, server_default="0")
    changed_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))
    updated_at: Mapped[datetime] = mapped_column(Moment, server_default=text("now()"))

    __table_args__ = ({"postgresql_with": {"fillfactor": "50"}},)
