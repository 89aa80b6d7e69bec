"""How the pools did lately: what the console's charts are drawn from."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger, Double, Integer, Text
from sqlalchemy.orm import Mapped, mapped_column

from models.schema.base import Base, Moment


class PoolSample(Base):
    """A pool at one moment, as the Recorder wrote it down.

    Counters begin with the deployment and only grow: a rate is the difference of two of them.
    """

    __tablename__ = "pool_samples"

    #: Seconds from one sample to the next: 5 for the last minutes, 300 for the last day.
    step: Mapped[int] = mapped_column(Integer, primary_key=True)
    pool: Mapped[str] = mapped_column(Text, primary_key=True)
    #: The beginning of the step in which it was taken, by the database's clock.
    at: Mapped[datetime] = mapped_column(Moment, primary_key=True)
    #: Jobs that came, replays included, and how they ended.
    submitted: Mapped[int] = mapped_column(BigInteger)
    succeeded: Mapped[int] = mapped_column(BigInteger)
    dead: Mapped[int] = mapped_column(BigInteger)
    cancelled: Mapped[int] = mapped_column(BigInteger)
    expired: Mapped[int] = mapped_column(BigInteger)
    #: Jobs in these states then.
    scheduled: Mapped[int] = mapped_column(BigInteger)
    queued: Mapped[int] = mapped_column(BigInteger)
    dispatched: Mapped[int] = mapped_column(BigInteger)
    running: Mapped[int] = mapped_column(BigInteger)
    #: How long the oldest in the line had waited; 0 if it was empty.
    oldest_seconds: Mapped[float] = mapped_column(Double)
    #: Of the living workers that serve everybody: slots in use, slots, processes.
    busy: Mapped[int] = mapped_column(Integer)
    slots: Mapped[int] = mapped_column(Integer)
    workers: Mapped[int] = mapped_column(Integer)
