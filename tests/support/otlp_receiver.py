"""A local collector: takes OTLP over HTTP and keeps what it was sent."""

from __future__ import annotations

import gzip
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import ExportMetricsServiceRequest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.metrics.v1.metrics_pb2 import Metric
from opentelemetry.proto.trace.v1.trace_pb2 import Span


class OtlpReceiver(ThreadingHTTPServer):
    """Spans and metrics by the service that sent them."""

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.spans: list[tuple[str, Span]] = []
        self.metrics: list[tuple[str, Metric]] = []
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def take(self, path: str, body: bytes) -> None:
        with self.changed:
            if path == "/v1/traces":
                for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                    for scope in resource.scope_spans:
                        name = service_name(resource)
                        self.spans += [(name, span) for span in scope.spans]
            elif path == "/v1/metrics":
                for source in ExportMetricsServiceRequest.FromString(body).resource_metrics:
                    for metrics in source.scope_metrics:
                        name = service_name(source)
                        self.metrics += [(name, metric) for metric in metrics.metrics]
            self.changed.notify_all()

    def find_span(self, service: str, name: str, seconds: float = 20) -> Span:
        """The first span of that name, as soon as it is here."""
        found: list[Span] = []

        def arrived() -> list[Span]:
            found[:] = [s for owner, s in self.spans if (owner, s.name) == (service, name)]
            return found

        with self.changed:
            self.changed.wait_for(arrived, seconds)
            assert found, f"no span {name!r}: {sorted({(o, s.name) for o, s in self.spans})}"
            return found[0]

    def wait_for_span(self, is_it: Callable[[Span], object], seconds: float = 20) -> Span:
        """The first span that is the one, as soon as it is here."""
        with self.changed:
            found = self.changed.wait_for(
                lambda: [span for _, span in self.spans if is_it(span)], seconds
            )
            assert found, f"not among {sorted({(o, s.name) for o, s in self.spans})}"
            return found[0]

    def wait_for_metrics(
        self, wanted: set[tuple[str, str]], seconds: float = 20
    ) -> set[tuple[str, str]]:
        """Services and names of all metrics that are here as soon as the wanted ones are."""
        with self.changed:
            self.changed.wait_for(lambda: wanted <= self._told(), seconds)
            assert not wanted - self._told(), f"missing: {sorted(wanted - self._told())}"
            return self._told()

    def _told(self) -> set[tuple[str, str]]:
        return {(service, metric.name) for service, metric in self.metrics}


def service_name(source: object) -> str:
    attributes = {a.key: a.value.string_value for a in source.resource.attributes}  # type: ignore[attr-defined]
    return attributes["service.name"]


class Handler(BaseHTTPRequestHandler):
    """Answers every export with success."""

    server: OtlpReceiver

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        if self.headers.get("Content-Encoding") == "gzip":
            body = gzip.decompress(body)
        self.server.take(self.path, body)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Quiet."""


@contextmanager
def otlp_receiver() -> Iterator[OtlpReceiver]:
    receiver = OtlpReceiver()
    thread = threading.Thread(target=receiver.serve_forever, daemon=True)
    thread.start()
    try:
        yield receiver
    finally:
        receiver.shutdown()
        receiver.server_close()
        thread.join()
