"""The OpenTelemetry SDK of this process, imported only when telemetry is wanted.

A process that ends waits two seconds for its collector and no longer: the SDK's own shutdown
retries an unavailable collector for ten seconds and more.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http import trace_exporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.metrics import CallbackOptions, Observation
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor
from sqlalchemy import Engine

from app.telemetry.durations import Exporter, RequestDurations
from app.telemetry.encoding import encode
from app.telemetry.scope import SCHEMA_URL, meter_of
from app.telemetry.tracing import Tracing
from models.presence import process_name
from models.store.session import PoolStats, pool_stats

FLUSH_SECONDS = 2.0


@dataclass(slots=True)
class Sdk:
    """The providers of this process."""

    traces: trace.TracerProvider
    meters: MeterProvider
    #: Spans of requests and admissions; None: there are no spans.
    tracing: Tracing | None = None
    durations: RequestDurations = field(default_factory=RequestDurations)
    _closed: bool = field(default=False, init=False)

    def close(self) -> None:
        """Send what is left, if that is quick. The second call does nothing."""
        if self._closed:
            return
        self._closed = True
        until = time.monotonic() + FLUSH_SECONDS
        providers = (
            self.meters,
            *([self.traces] if isinstance(self.traces, TracerProvider) else ()),
        )
        flushes = [
            threading.Thread(target=provider.force_flush, daemon=True) for provider in providers
        ]
        for flush in flushes:
            flush.start()
        for flush in flushes:
            flush.join(max(0.0, until - time.monotonic()))


def start_sdk(kind: str, process: str = "") -> Sdk:
    """Providers and exporters of this process; a worker passes its name."""
    resource = Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME", f"fairline-{kind}"),
            "service.namespace": "fairline",
            "service.instance.id": process or process_name(kind),
        },
        SCHEMA_URL,
    )
    traces, tracing = start_traces(resource)
    durations = RequestDurations()
    reader = PeriodicExportingMetricReader(Exporter(durations))
    meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(meters)
    if kind == "worker":
        # A span of each message as Celery sees it, in the trace that the message names. Only here:
        # it leaks spans where unregistered tasks are published, and our publisher is not Celery's.
        CeleryInstrumentor().instrument(tracer_provider=traces, meter_provider=meters)
    sdk = Sdk(traces, meters, tracing, durations)
    atexit.register(sdk.close)
    return sdk


def start_traces(resource: Resource) -> tuple[trace.TracerProvider, Tracing | None]:
    """What makes spans and exports them; nothing if only metrics are wanted."""
    if os.environ.get("OTEL_TRACES_EXPORTER", "").strip().lower() == "none":
        return trace.NoOpTracerProvider(), None
    traces = TracerProvider(resource=resource, shutdown_on_exit=False)
    trace_exporter.encode_spans = encode  # type: ignore[attr-defined]  # it has no other way
    processor = BatchSpanProcessor(trace_exporter.OTLPSpanExporter())
    traces.add_span_processor(processor)
    trace.set_tracer_provider(traces)
    return traces, Tracing(traces, processor)


def observe_connections(meters: metrics.MeterProvider, engine: Engine, process: str) -> None:
    """Size, use and waiters of the connection pool, by the names of the semantic conventions.

    Not by the SQLAlchemy instrumentation: it is for older versions and uses outdated names.
    """
    meter = meter_of(meters)
    pool = {"db.client.connection.pool.name": process}

    def observe(
        name: str, unit: str, text: str, read: Callable[[PoolStats], dict[str, float]]
    ) -> None:
        def callback(_: CallbackOptions) -> Iterable[Observation]:
            for state, value in read(pool_stats(engine, f"otel.{name}")).items():
                about = {"db.client.connection.state": state} if state else {}
                yield Observation(value, {**pool, **about})

        metric = f"db.client.connection.{name}"
        meter.create_observable_up_down_counter(metric, [callback], unit, text)

    states = "Connections by state."
    waiters = "Most that waited for a connection since the last observation."
    observe("count", "{connection}", states, lambda now: {"used": now.in_use, "idle": now.idle})
    observe("max", "{connection}", "Largest size of the pool.", lambda now: {"": now.size})
    observe("pending_requests", "{request}", waiters, lambda now: {"": now.waiters})
