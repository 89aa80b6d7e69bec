"""The connection pool of a process, by the names of the semantic conventions.

Not by the SQLAlchemy instrumentation: it is for older versions and names them as they once were.
"""

from __future__ import annotations

from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, MeterProvider, Observation
from sqlalchemy import Engine

from models.store.session import pool_stats


def observe_connections(meters: MeterProvider, engine: Engine, process: str) -> None:
    """Size, use and waiters of the pool behind ``engine``."""
    meter = meters.get_meter("fairline")
    labels = {"db.client.connection.pool.name": process}

    def count(_: CallbackOptions) -> Iterable[Observation]:
        stats = pool_stats(engine, "otel.count")
        yield Observation(stats.in_use, {**labels, "db.client.connection.state": "used"})
        yield Observation(stats.idle, {**labels, "db.client.connection.state": "idle"})

    def most(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(pool_stats(engine, "otel.max").size, labels)

    def pending(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(pool_stats(engine, "otel.pending").waiters, labels)

    for name, callback, unit, text in (
        ("db.client.connection.count", count, "{connection}", "Connections by state."),
        ("db.client.connection.max", most, "{connection}", "Connections that the pool may have."),
        (
            "db.client.connection.pending_requests",
            pending,
            "{request}",
            "Most that waited for a connection since the last look.",
        ),
    ):
        meter.create_observable_up_down_counter(name, [callback], unit, text)
