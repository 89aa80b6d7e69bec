"""The OpenTelemetry SDK, imported only when telemetry is wanted."""

from __future__ import annotations

import os
from collections.abc import Iterable

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from sqlalchemy import Engine

from models.presence import process_name
from models.session import pool_stats
from tasks.runtime import tracing


def start_sdk(kind: str) -> None:
    """Providers, exporters and the Celery instrumentation of this process."""
    resource = Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME", f"fairline-{kind}"),
            "service.namespace": "fairline",
            "service.instance.id": process_name(kind),
        }
    )
    tracer_provider = TracerProvider(resource=resource)
    tracer_provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(tracer_provider)
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    metrics.set_meter_provider(MeterProvider([reader], resource=resource))
    CeleryInstrumentor().instrument()
    tracing.enabled = True


def observe_engine(engine: Engine, process: str) -> None:
    """Gauges of a connection pool, by the semantic conventions' names."""
    meter = metrics.get_meter("fairline")
    labels = {"db.client.connection.pool.name": process}

    def count(_: CallbackOptions) -> Iterable[Observation]:
        stats = pool_stats(engine, "otel.count")
        yield Observation(stats.in_use, {**labels, "db.client.connection.state": "used"})
        yield Observation(
            stats.size - stats.in_use, {**labels, "db.client.connection.state": "idle"}
        )

    def most(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(pool_stats(engine, "otel.max").size, labels)

    def pending(_: CallbackOptions) -> Iterable[Observation]:
        yield Observation(pool_stats(engine, "otel.pending").waiters, labels)

    meter.create_observable_gauge("db.client.connection.count", [count], "{connection}")
    meter.create_observable_gauge("db.client.connection.max", [most], "{connection}")
    meter.create_observable_gauge("db.client.connection.pending_requests", [pending], "{request}")
