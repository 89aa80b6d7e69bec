"""The OpenTelemetry SDK of this process, imported only when telemetry is wanted.

A process that ends waits two seconds for its collector and no longer: the SDK's own way of
ending tries a collector that is away again and again, for ten seconds and more.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
from dataclasses import dataclass, field

from opentelemetry import metrics, trace
from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.celery import CeleryInstrumentor
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

from models.presence import process_name

FLUSH_SECONDS = 2.0


@dataclass(slots=True)
class Sdk:
    """The providers of this process."""

    traces: TracerProvider
    meters: MeterProvider
    _closed: bool = field(default=False, init=False)

    def close(self) -> None:
        """Send what is left, if that is soon done. The second call does nothing."""
        if self._closed:
            return
        self._closed = True
        until = time.monotonic() + FLUSH_SECONDS
        flushes = [
            threading.Thread(target=flush, daemon=True)
            for flush in (self.traces.force_flush, self.meters.force_flush)
        ]
        for flush in flushes:
            flush.start()
        for flush in flushes:
            flush.join(max(0.0, until - time.monotonic()))


def start_sdk(kind: str) -> Sdk:
    """Providers and exporters of this process."""
    resource = Resource.create(
        {
            "service.name": os.environ.get("OTEL_SERVICE_NAME", f"fairline-{kind}"),
            "service.namespace": "fairline",
            "service.instance.id": process_name(kind),
        }
    )
    traces = TracerProvider(resource=resource, shutdown_on_exit=False)
    traces.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(traces)
    reader = PeriodicExportingMetricReader(OTLPMetricExporter())
    meters = MeterProvider([reader], resource=resource, shutdown_on_exit=False)
    metrics.set_meter_provider(meters)
    if kind == "worker":
        # A span of each message as Celery sees it. Only here: where a task is published that is
        # not registered it leaks spans, and our publisher is not Celery's.
        CeleryInstrumentor().instrument(tracer_provider=traces, meter_provider=meters)
    sdk = Sdk(traces, meters)
    atexit.register(sdk.close)
    return sdk
