"""How long requests take, as a histogram: counted here, since the SDK's own way takes a tenth of
what a whole submission does.

Added to what the SDK exports. Of one process, whose requests share a thread.
"""

from __future__ import annotations

import os
import time
from bisect import bisect_left
from typing import Any, NamedTuple

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Histogram,
    HistogramDataPoint,
    Metric,
    MetricExportResult,
    MetricsData,
    ResourceMetrics,
    ScopeMetrics,
)
from opentelemetry.util.types import AttributeValue

from app.telemetry import attributes as names
from app.telemetry.scope import SCHEMA_URL
from app.telemetry.tracing import SCOPE

BOUNDS = names.OPERATION_BOUNDS
#: Values of the variable that ask for what was counted since the last export, not in total.
DELTA = frozenset({"delta", "lowmemory"})


class RequestKind(NamedTuple):
    """What requests are told apart by."""

    method: str
    scheme: str
    route: str | None
    code: int

    @property
    def attributes(self) -> dict[str, AttributeValue]:
        found: dict[str, AttributeValue] = {
            "http.request.method": self.method,
            "url.scheme": self.scheme,
            "http.response.status_code": self.code,
        }
        if self.route:
            found["http.route"] = self.route
        if self.code >= 500:
            found[names.ERROR_TYPE] = str(self.code)
        return found


class Counted:
    """The durations of one kind."""

    __slots__ = ("buckets", "longest", "shortest", "total")

    def __init__(self) -> None:
        self.buckets = [0] * (len(BOUNDS) + 1)
        self.total, self.longest, self.shortest = 0.0, 0.0, float("inf")


class RequestDurations:
    """The metric ``http.server.request.duration`` of a process."""

    def __init__(self) -> None:
        self._kinds: dict[tuple[str, str, str | None, int], Counted] = {}
        self._since = time.time_ns()
        wanted = os.environ.get("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", "")
        self._delta = wanted.strip().lower() in DELTA

    def record(
        self, seconds: float, method: str, scheme: str, route: str | None, code: int
    ) -> None:
        kind = (method, scheme, route, code)
        counted = self._kinds.get(kind)
        if counted is None:
            counted = self._kinds[kind] = Counted()
        counted.buckets[bisect_left(BOUNDS, seconds)] += 1
        counted.total += seconds
        if seconds > counted.longest:
            counted.longest = seconds
        if seconds < counted.shortest:
            counted.shortest = seconds

    def added_to(self, data: MetricsData) -> MetricsData:
        """What the SDK has collected, and the durations."""
        if not self._kinds or not data.resource_metrics:
            return data
        first, *others = data.resource_metrics
        mine = ScopeMetrics(SCOPE, [self.take()], SCHEMA_URL)
        scopes = [*first.scope_metrics, mine]
        return MetricsData([ResourceMetrics(first.resource, scopes, first.schema_url), *others])

    def take(self) -> Metric:
        """The metric as it is exported now."""
        now, since, kinds = time.time_ns(), self._since, self._kinds
        temporality = AggregationTemporality.CUMULATIVE
        if self._delta:
            temporality = AggregationTemporality.DELTA
            self._kinds, self._since = {}, now
        points = [
            HistogramDataPoint(
                RequestKind(*kind).attributes,
                since,
                now,
                sum(counted.buckets),
                counted.total,
                tuple(counted.buckets),
                BOUNDS,
                counted.shortest,
                counted.longest,
            )
            for kind, counted in kinds.items()
        ]
        name = "http.server.request.duration"
        return Metric(name, "Duration of requests.", "s", Histogram(points, temporality))


class Exporter(OTLPMetricExporter):
    """Exports what the SDK has collected together with the durations."""

    def __init__(self, durations: RequestDurations) -> None:
        super().__init__()
        self._durations = durations

    def export(self, metrics_data: MetricsData, *args: Any, **options: Any) -> MetricExportResult:
        return super().export(self._durations.added_to(metrics_data), *args, **options)
