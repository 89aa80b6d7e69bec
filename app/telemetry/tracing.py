"""Spans of requests and admissions, which are made when they have ended.

A span of the SDK costs an admission as much as everything else that it needs. So a request has only
a context at first: its ids, and whether it is sampled, which the SDK's sampler decides. If it is
not, nothing else is made; if it is, the finished span goes to the SDK's processor like any other.
Not guaranteed for these spans: the SDK's limits of attributes (``OTEL_SPAN_ATTRIBUTE_…_LIMIT``).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import (
    ParentBased,
    ParentBasedTraceIdRatio,
    Sampler,
    TraceIdRatioBased,
)
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import (
    DEFAULT_TRACE_STATE,
    SpanContext,
    SpanKind,
    Status,
    StatusCode,
    TraceFlags,
)
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from app.log_ids import TRACE, current_request
from app.telemetry.scope import NAME, SCHEMA_URL
from models.jobs.trace_context import kept_context

SCOPE: Final = InstrumentationScope(NAME, schema_url=SCHEMA_URL)
SAMPLED: Final = TraceFlags(TraceFlags.SAMPLED)
NOT_SAMPLED: Final = TraceFlags(TraceFlags.DEFAULT)
#: The part of a trace's id that samplers decide by.
LOW_BITS: Final = TraceIdRatioBased.TRACE_ID_LIMIT
UNSET, ERROR = Status(StatusCode.UNSET), Status(StatusCode.ERROR)

_propagator = TraceContextTextMapPropagator()
_no_parent = Context()


class FinishedSpan(ReadableSpan):
    """A span without events and links, of the scope of this application."""


Attributes = dict[str, AttributeValue]


def sampled_below(sampler: Sampler) -> int:
    """New traces whose low bits are not below this are not sampled; about others it is asked.

    For the samplers of the SDK that decide by the id alone: they need no description of a request.
    """
    root = sampler
    if type(sampler) in (ParentBased, ParentBasedTraceIdRatio):
        root = getattr(sampler, "_root", sampler)
    return root.bound if type(root) is TraceIdRatioBased else LOW_BITS + 1


class Tracing:
    """Makes contexts and finished spans for a process."""

    def __init__(self, provider: TracerProvider, processor: SpanProcessor) -> None:
        self._sampler = provider.sampler
        self._sampled_below = sampled_below(provider.sampler)
        self._ids = provider.id_generator
        self._resource = provider.resource
        self._process = processor.on_end

    def begin(
        self,
        name: str,
        kind: SpanKind,
        describe: Callable[[], Attributes],
        headers: Mapping[str, str] | None = None,
    ) -> tuple[SpanContext, SpanContext | None, Attributes | None]:
        """The context of a span below that of ``headers``, or of a new trace; its parent, and its
        attributes, None if it is not sampled."""
        above = context_of(headers) if headers else _no_parent
        parent = sent_by(above) if headers else None
        trace_id = parent.trace_id if parent else self._ids.generate_trace_id()
        if parent is None and trace_id & LOW_BITS >= self._sampled_below:
            span_id = self._ids.generate_span_id()
            return SpanContext(trace_id, span_id, False, NOT_SAMPLED), None, None
        attributes = describe()
        choice = self._sampler.should_sample(above, trace_id, name, kind, attributes)
        sampled = choice.decision.is_sampled()
        attributes.update(choice.attributes)
        context = SpanContext(
            trace_id,
            self._ids.generate_span_id(),
            is_remote=False,
            trace_flags=SAMPLED if sampled else NOT_SAMPLED,
            trace_state=choice.trace_state,
        )
        return context, parent, attributes if sampled else None

    def below(self, parent: SpanContext) -> SpanContext:
        """The context of a span within another one of this process, which is sampled."""
        return SpanContext(
            parent.trace_id,
            self._ids.generate_span_id(),
            is_remote=False,
            trace_flags=SAMPLED,
            trace_state=parent.trace_state,
        )

    def finish(
        self,
        name: str,
        context: SpanContext,
        parent: SpanContext | None,
        kind: SpanKind,
        attributes: Mapping[str, AttributeValue],
        began: int,
        *,
        failed: bool = False,
    ) -> None:
        """Hand over a span that ends now; ``began`` is in nanoseconds since 1970."""
        ended = max(began, time.time_ns())
        self._process(
            FinishedSpan(
                name,
                context,
                parent,
                self._resource,
                attributes,
                kind=kind,
                status=ERROR if failed else UNSET,
                start_time=began,
                end_time=ended,
                instrumentation_scope=SCOPE,
            )
        )


def current_context() -> SpanContext | None:
    """The context of the current request, else of the current span; None without either."""
    environ = current_request.get()
    if environ is not None and (found := environ.get(TRACE)) is not None:
        context: SpanContext = found
        return context
    context = trace.get_current_span().get_span_context()
    return context if context.is_valid else None


def context_of(headers: Mapping[str, str]) -> Context:
    """The context of ``traceparent`` and ``tracestate``, as a parent; without one a trace
    begins."""
    return _propagator.extract(headers, Context()) if headers else Context()


def sent_by(above: Context) -> SpanContext | None:
    """The span that a context is of."""
    context = trace.get_current_span(above).get_span_context()
    return context if context.is_valid else None


def kept_of(context: SpanContext) -> str | None:
    """The context to store in a row, even if its span is not recorded."""
    # Each of its properties would be a call, and most requests do nothing else with it.
    trace_id, span_id, _, flags, state, _ = context
    kept = f"00-{trace_id:032x}-{span_id:016x}-{flags & SAMPLED:02x}"
    if state is DEFAULT_TRACE_STATE or not state:
        return kept
    return kept_context(kept, state.to_header())
