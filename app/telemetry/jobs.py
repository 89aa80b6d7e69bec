"""Spans and counts of jobs until a worker has them: ``admit`` and ``dispatch``.

The context of ``admit`` is stored in the rows (``jobs.traceparent``, with its ``tracestate``), so
that every run of them belongs to the same trace. ``dispatch`` is one publish, in a separate trace,
since its jobs belong to many. Counts are those of this process.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING

from opentelemetry.context import Context
from opentelemetry.trace import SpanKind, Status, StatusCode
from opentelemetry.util.types import AttributeValue

from app.errors import FairlineError
from app.telemetry import attributes as names
from app.telemetry.scope import meter_of, tracer_of
from app.telemetry.tracing import SAMPLED, Attributes, current_context, kept_of
from models.jobs.dispatch import Dispatch
from models.jobs.submission import Admitted, Submission

if TYPE_CHECKING:
    from app.telemetry.sdk import Sdk

#: Ids of a batch that its span has; all of its runs are linked to the span anyway.
MOST_IDS = 20


class JobTelemetry:
    """What a process reports about the jobs that it admits, dispatches and reaps."""

    def __init__(self, sdk: Sdk) -> None:
        self._tracing = sdk.tracing
        self._tracer = tracer_of(sdk.traces)
        meter = meter_of(sdk.meters)
        self._took = meter.create_histogram(
            "messaging.client.operation.duration",
            "s",
            "Duration of publishes.",
            explicit_bucket_boundaries_advisory=names.OPERATION_BOUNDS,
        )
        self._dispatched = meter.create_counter(
            "fairline.jobs.dispatched", "{job}", "Jobs handed to the broker."
        )
        self._reaped = meter.create_counter(
            "fairline.jobs.reaped", "{job}", "Jobs taken back from lost workers and messages."
        )

    def admit(
        self, submissions: Sequence[Submission], enter: Callable[[Sequence[Submission]], Admitted]
    ) -> Admitted:
        """``enter`` the submissions of one request, which carry the context of its span."""
        tracing = self._tracing
        if tracing is None:
            return enter(submissions)
        parent = current_context()
        attributes: Attributes | None = None
        if parent is None:
            context, _, attributes = tracing.begin("admit", SpanKind.PRODUCER, dict)
        elif parent.trace_flags & SAMPLED:
            context, attributes = tracing.below(parent), {}
        else:
            context = parent  # there will be no span that needs an id
        kept = kept_of(context)
        kept_by = [item.in_trace(kept) for item in submissions]
        if attributes is None:
            return enter(kept_by)
        began, failed = time.time_ns(), True
        attributes |= admit_attributes(submissions)
        try:
            admitted = enter(kept_by)
            failed = False
        except Exception as error:
            # Its type, not its text, which may contain personal data.
            attributes[names.ERROR_TYPE] = error_code(error)
            raise
        finally:
            if not failed:
                attributes |= admitted_attributes(admitted)
            tracing.finish(
                "admit", context, parent, SpanKind.PRODUCER, attributes, began, failed=failed
            )
        return admitted

    def admit_alone(self, item: Submission) -> Submission:
        """A job without a request, at the beginning of a trace."""
        if self._tracing is None:
            return item
        context, _, attributes = self._tracing.begin(
            "admit", SpanKind.PRODUCER, lambda: admit_attributes([item])
        )
        if attributes is not None:
            now = time.time_ns()
            self._tracing.finish("admit", context, None, SpanKind.PRODUCER, attributes, now)
        return item.in_trace(kept_of(context))

    @contextmanager
    def dispatch(self, dispatches: Sequence[Dispatch]) -> Iterator[None]:
        """The span of a publish, which counts unless it fails."""
        by_pool = Counter(each.pool for each in dispatches)
        attributes = common_attributes("dispatch", set(by_pool))
        about = dict(attributes)
        about.pop(names.POOL, None)  # it has another name in the conventions
        attributes[names.BATCH_COUNT] = len(dispatches)
        began = time.perf_counter()
        try:
            with self._tracer.start_as_current_span(
                "dispatch",
                Context(),
                kind=SpanKind.PRODUCER,
                attributes=attributes,
                record_exception=False,
                set_status_on_exception=False,
            ) as span:
                try:
                    yield
                except Exception as error:
                    about[names.ERROR_TYPE] = error_name(error)
                    span.set_attribute(names.ERROR_TYPE, error_name(error))
                    span.set_status(Status(StatusCode.ERROR))
                    raise
        finally:
            # Not of admissions: it would cost each of them as much as half a span, and the
            # duration of its request says the same.
            self._took.record(time.perf_counter() - began, about)
        for pool, jobs in by_pool.items():
            self._dispatched.add(jobs, {names.POOL: pool})

    def count_reaped(self, pools_and_ends: Sequence[tuple[str, str]]) -> None:
        """Count by pool and by the status that the jobs got."""
        for (pool, end), jobs in Counter(pools_and_ends).items():
            self._reaped.add(jobs, {names.POOL: pool, names.OUTCOME: end})


def common_attributes(operation: str, pools: set[str]) -> dict[str, AttributeValue]:
    """What every span says; the pool is omitted if there are several."""
    found: dict[str, AttributeValue] = {
        names.MESSAGING_SYSTEM: names.SYSTEM,
        names.OPERATION_NAME: operation,
        names.OPERATION_TYPE: "send",
    }
    if len(pools) == 1:
        found[names.DESTINATION] = found[names.POOL] = pools.pop()
    return found


def admit_attributes(submissions: Sequence[Submission]) -> dict[str, AttributeValue]:
    """What the span says about them; what differs within a batch is omitted."""
    found = common_attributes("admit", {item.pool for item in submissions})
    found[names.TENANT_ID] = submissions[0].tenant_id
    types = {item.type for item in submissions}
    if len(types) == 1:
        found[names.JOB_TYPE] = types.pop()
    if len(submissions) > 1:
        found[names.BATCH_COUNT] = len(submissions)
    return found | id_attributes([item.id for item in submissions])


def admitted_attributes(admitted: Admitted) -> dict[str, AttributeValue]:
    """What is known after the commit."""
    if admitted.repeated:  # the jobs are those of the first request with the same key
        return {names.REPEATED: True, **id_attributes(admitted.ids)}
    return {names.EXPRESS: len(admitted.express)} if admitted.express else {}


def id_attributes(ids: Sequence[str]) -> dict[str, AttributeValue]:
    """The ids of jobs, as many as a span has."""
    if len(ids) == 1:
        return {names.MESSAGE_ID: ids[0], names.JOB_ID: ids[0]}
    return {names.JOB_IDS: tuple(ids[:MOST_IDS])}


def error_name(error: Exception) -> str:
    return type(error).__qualname__


def error_code(error: Exception) -> str:
    """The code that the caller gets, else the class of the error."""
    return error.code if isinstance(error, FairlineError) else error_name(error)
