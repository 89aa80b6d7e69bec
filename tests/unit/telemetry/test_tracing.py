"""Spans and durations of requests: the same as the SDK's, for a fraction of the work."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
from flask import Flask
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_ON,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
    TraceIdRatioBased,
)
from opentelemetry.trace import SpanKind
from opentelemetry.util.types import AttributeValue

from app.log_ids import current_request
from app.telemetry import attributes as names
from app.telemetry.durations import RequestDurations
from app.telemetry.encoding import MOST_CHARACTERS, encode, remembered
from app.telemetry.jobs import JobTelemetry
from app.telemetry.requests import Requests
from app.telemetry.scope import tracer_of
from app.telemetry.sdk import Sdk, start_traces
from app.telemetry.tracing import SCOPE, FinishedSpan, Tracing
from models.jobs.submission import Admitted, Submission

TRACE, CALLER = "a" * 32, "b" * 16
JOB = Submission("01a1df91-4afc-7cf8-8fd3-75753825e56c", 1, "echo", "short", "{}")
TEXTS = st.one_of(st.text("aB9/ä€", max_size=9), st.just("long" * MOST_CHARACTERS))
ATTRIBUTES = st.dictionaries(
    st.sampled_from(("url.path", "http.route", "fairline.tenant.id", "fairline.job.ids")),
    st.one_of(
        TEXTS,
        st.booleans(),
        st.integers(-(2**63), 2**63 - 1),
        st.floats(allow_nan=False),
        st.lists(TEXTS, max_size=3).map(tuple),
    ),
)
HEADERS = st.sampled_from(
    (
        None,
        {"traceparent": f"00-{TRACE}-{CALLER}-01"},
        {"traceparent": f"00-{TRACE}-{CALLER}-01", "tracestate": "congo=t61,rojo=00f0"},
        {"traceparent": "not a context"},
    )
)


class Process:
    """Requests, each of which admits one job, with the exporter of their spans."""

    def __init__(self, sampler: Sampler | None) -> None:
        self.spans = InMemorySpanExporter()
        self.rows: list[Submission] = []
        traces = TracerProvider(sampler=sampler)
        processor = SimpleSpanProcessor(self.spans)
        traces.add_span_processor(processor)
        tracing = Tracing(traces, processor) if sampler else None
        self.sdk = Sdk(traces, MeterProvider([]), tracing)
        self._jobs = JobTelemetry(self.sdk)
        self._requests = Requests(self.sdk, Flask("app"))

    def post(self, **headers: str) -> None:
        environ = {
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/jobs",
            "SERVER_NAME": "here",
            "wsgi.url_scheme": "http",
            **{f"HTTP_{name.upper()}": value for name, value in headers.items()},
        }
        current_request.set(environ)
        self._requests.answer(environ, lambda *_: None, self._answer)
        current_request.set(None)

    def _answer(self, environ: Any, start: Any) -> list[bytes]:
        self._jobs.admit([JOB], self._enter)
        start("202 Accepted", [])
        return [b""]

    def _enter(self, items: Sequence[Submission]) -> Admitted:
        self.rows += items
        return Admitted((JOB.id,))


@contextmanager
def counted_calls() -> Iterator[list[int]]:
    """Calls of Python functions meanwhile."""
    calls = [0]

    def note(_: Any, event: str, __: Any) -> None:
        calls[0] += event == "call"

    sys.setprofile(note)
    try:
        yield calls
    finally:
        sys.setprofile(None)


@pytest.mark.parametrize(
    ("sampler", "most"),
    # By the SDK's own spans and histogram 165 if it is not sampled and 284 if it is.
    [(None, 15), (ParentBasedTraceIdRatio(0.0), 28), (ALWAYS_OFF, 38), (ALWAYS_ON, 84)],
    ids=["metrics alone", "not sampled by its id", "not sampled", "sampled"],
)
def test_what_telemetry_adds_to_a_submission_is_a_few_calls(
    sampler: Sampler | None, most: int
) -> None:
    process = Process(sampler)
    process.post()
    with counted_calls() as calls:
        process.post()
    assert calls[0] <= most
    assert len(process.spans.get_finished_spans()) == (4 if sampler is ALWAYS_ON else 0)


def test_spans_of_a_request_are_in_the_callers_trace() -> None:
    process = Process(DEFAULT_ON)
    process.post(traceparent=f"00-{TRACE}-{CALLER}-01", tracestate="congo=t61")
    admit, request = process.spans.get_finished_spans()
    assert (request.name, admit.name) == ("POST /jobs", "admit")
    assert request.parent and request.parent.is_remote
    assert f"{request.parent.span_id:016x}" == CALLER
    assert admit.parent == request.context
    assert {f"{span.context.trace_id:032x}" for span in (admit, request)} == {TRACE}
    assert {span.context.trace_state.to_header() for span in (admit, request)} == {"congo=t61"}
    assert process.rows[0].traceparent == f"00-{TRACE}-{admit.context.span_id:016x}-01 congo=t61"


def test_a_trace_that_is_not_sampled_is_handed_on_without_spans() -> None:
    process = Process(DEFAULT_ON)
    process.post(traceparent=f"00-{TRACE}-{CALLER}-00", tracestate="congo=t61")
    kept = process.rows[0].traceparent
    assert kept is not None and kept.startswith(f"00-{TRACE}-") and kept.endswith("-00 congo=t61")
    assert not process.spans.get_finished_spans()


def test_without_traces_rows_keep_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "none")
    traces, tracing = start_traces(Resource.get_empty())
    assert tracing is None and not traces.get_tracer("x").start_span("x").is_recording()
    process = Process(None)
    process.post(traceparent=f"00-{TRACE}-{CALLER}-01")
    assert process.rows[0].traceparent is None
    (point,) = process.sdk.durations.take().data.data_points
    assert dict(point.attributes or {}) == {
        "http.request.method": "POST",
        "url.scheme": "http",
        "http.response.status_code": 202,
        "http.route": "/jobs",
    }


@given(st.lists(st.tuples(ATTRIBUTES, HEADERS, st.booleans()), min_size=1, max_size=4))
def test_spans_are_encoded_as_by_the_sdk(
    cases: list[tuple[dict[str, AttributeValue], dict[str, str] | None, bool]],
) -> None:
    spans = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource({"service.name": "x"}))
    processor = SimpleSpanProcessor(spans)
    provider.add_span_processor(processor)
    tracing = Tracing(provider, processor)
    for given_attributes, headers, failed in cases:
        context, parent, attributes = tracing.begin(
            "admit", SpanKind.PRODUCER, given_attributes.copy, headers
        )
        assert attributes is not None  # every one is sampled
        kind = SpanKind.SERVER if failed else SpanKind.PRODUCER
        tracing.finish("admit", context, parent, kind, attributes, 1, failed=failed)
        for tracer in (tracer_of(provider), provider.get_tracer("another")):
            with tracer.start_as_current_span("dispatch"):
                pass
    ended = spans.get_finished_spans()
    assert any(type(span) is FinishedSpan for span in ended)
    assert sorted_spans(encode(ended)) == sorted_spans(encode_spans(ended))


class FixedIds(RandomIdGenerator):
    """Every trace has the same id."""

    def __init__(self, trace_id: int) -> None:
        self._trace_id = trace_id

    def generate_trace_id(self) -> int:
        return self._trace_id


class AllOfThem(TraceIdRatioBased):
    """Somebody's own sampler, which does not do what its base does."""

    def should_sample(self, *args: Any, **options: Any) -> SamplingResult:
        return ALWAYS_ON.should_sample(*args, **options)


@given(
    st.sampled_from((TraceIdRatioBased, ParentBasedTraceIdRatio, AllOfThem)),
    st.sampled_from((0.0, 0.1, 0.5, 1.0)),
    st.one_of(st.integers(1, 2**128 - 1), st.integers(1, 2**64 - 1)),
)
def test_new_traces_are_sampled_as_the_sampler_says(
    kind: type[TraceIdRatioBased | ParentBasedTraceIdRatio], rate: float, trace_id: int
) -> None:
    sampler = kind(rate)
    provider = TracerProvider(sampler=sampler, id_generator=FixedIds(trace_id))
    tracing = Tracing(provider, SimpleSpanProcessor(InMemorySpanExporter()))
    context, parent, attributes = tracing.begin("x", SpanKind.SERVER, lambda: {"url.path": "/"})
    sampled = sampler.should_sample(Context(), trace_id, "x").decision.is_sampled()
    assert context.trace_flags.sampled == sampled and context.is_valid and parent is None
    assert context.trace_id == trace_id and attributes == ({"url.path": "/"} if sampled else None)


def test_a_caller_s_choice_comes_before_the_share() -> None:
    process = Process(ParentBasedTraceIdRatio(0.0))
    process.post(traceparent=f"00-{TRACE}-{CALLER}-01")
    process.post()
    assert [span.context.trace_id for span in process.spans.get_finished_spans()] == [
        int(TRACE, 16)
    ] * 2
    assert [(row.traceparent or "")[-2:] for row in process.rows] == ["01", "00"]


def sorted_spans(request: Any) -> list[tuple[str, str, str]]:
    """Each span with its scope and its resource; how they are grouped means nothing."""
    return sorted(
        (str(span), f"{scope.scope} {scope.schema_url}", f"{its.resource} {its.schema_url}")
        for its in request.resource_spans
        for scope in its.scope_spans
        for span in scope.spans
    )


def test_spans_of_the_sdk_alone_are_left_to_it() -> None:
    with TracerProvider().get_tracer("x").start_as_current_span("run") as span:
        pass
    assert isinstance(span, ReadableSpan)
    assert encode([span]) == encode_spans([span])


def test_long_texts_of_callers_are_not_remembered() -> None:
    remembered.cache_clear()
    process = Process(ALWAYS_ON)
    for number in range(3):
        process.post(user_agent=f"{number}" * (MOST_CHARACTERS + 1))
    encode(process.spans.get_finished_spans())
    assert 0 < remembered.cache_info().currsize < 20


@given(st.lists(st.floats(min_value=0, max_value=20), min_size=1, max_size=30))
def test_durations_are_counted_as_by_the_sdk(seconds: list[float]) -> None:
    reader = InMemoryMetricReader()
    meter = MeterProvider([reader]).get_meter("x")
    theirs = meter.create_histogram("x", explicit_bucket_boundaries_advisory=names.OPERATION_BOUNDS)
    ours = RequestDurations()
    for each in seconds:
        theirs.record(each)
        ours.record(each, "GET", "http", None, 200)
    data = reader.get_metrics_data()
    assert data is not None
    metric = data.resource_metrics[0].scope_metrics[0].metrics[0]
    (expected,), (found,) = metric.data.data_points, ours.take().data.data_points
    for name in ("count", "bucket_counts", "explicit_bounds", "min", "max"):
        assert tuple_of(getattr(found, name)) == tuple_of(getattr(expected, name)), name
    assert found.sum == pytest.approx(expected.sum)  # type: ignore[union-attr]
    added = ours.added_to(data).resource_metrics[0].scope_metrics[-1]
    assert (added.scope, added.metrics[0].name) == (SCOPE, "http.server.request.duration")


def tuple_of(value: Any) -> Any:
    return tuple(value) if isinstance(value, Sequence) else value


@pytest.mark.parametrize(("wanted", "then"), [("", [2, 3]), ("delta", [2, 1])])
def test_durations_are_in_total_or_since_the_last_export(
    monkeypatch: pytest.MonkeyPatch, wanted: str, then: list[int]
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE", wanted)
    durations, found = RequestDurations(), []
    for requests in (2, 1):
        for _ in range(requests):
            durations.record(0.1, "GET", "http", "/jobs", 503)
        (point,) = durations.take().data.data_points
        found.append(getattr(point, "count", 0))
        assert (point.attributes or {})["error.type"] == "503"
    assert found == then
