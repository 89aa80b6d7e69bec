"""Tracer and meter of our own spans and metrics, with the version of their conventions."""

from __future__ import annotations

from typing import Final

from opentelemetry.metrics import Meter, MeterProvider
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import Tracer, TracerProvider

NAME: Final = "fairline"
#: A test compares our names with the conventions of this version.
SCHEMA_URL: Final = Schemas.V1_44_0.value


def tracer_of(traces: TracerProvider) -> Tracer:
    return traces.get_tracer(NAME, schema_url=SCHEMA_URL)


def meter_of(meters: MeterProvider) -> Meter:
    return meters.get_meter(NAME, schema_url=SCHEMA_URL)
