"""Spans of publishes and counts of what went to the workers or came back from lost ones.

A span a publish, not a job: a round of the scheduler, or what the express lane gathered. It is a
trace of its own, since its jobs belong to as many. Counts are those of this process: the API's
express lane dispatches too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from opentelemetry.context import Context
from opentelemetry.metrics import MeterProvider
from opentelemetry.trace import SpanKind, Status, StatusCode, TracerProvider
from opentelemetry.util.types import AttributeValue

from app.telemetry import attributes as names
from models.jobs.dispatch import Dispatch


class Dispatching:
    """What a process tells of its publishes."""

    def __init__(self, traces: TracerProvider, meters: MeterProvider) -> None:
        self._tracer = traces.get_tracer("fairline")
        meter = meters.get_meter("fairline")
        self._dispatched = meter.create_counter(
            "fairline.jobs.dispatched", "{job}", "Jobs handed to the broker."
        )
        self._reaped = meter.create_counter(
            "fairline.jobs.reaped", "{job}", "Jobs taken back from lost workers and messages."
        )

    @contextmanager
    def span(self, dispatches: Sequence[Dispatch]) -> Iterator[None]:
        """A publish; it counts if it does not fail."""
        by_pool = Counter(each.pool for each in dispatches)
        about: dict[str, AttributeValue] = {
            names.MESSAGING_SYSTEM: names.SYSTEM,
            names.OPERATION_NAME: "dispatch",
            names.OPERATION_TYPE: "send",
            names.BATCH_COUNT: len(dispatches),
        }
        if len(by_pool) == 1:
            about[names.DESTINATION] = about[names.POOL] = dispatches[0].pool
        with self._tracer.start_as_current_span(
            "dispatch",
            Context(),
            kind=SpanKind.PRODUCER,
            attributes=about,
            record_exception=False,
            set_status_on_exception=False,
        ) as span:
            try:
                yield
            except Exception as error:
                span.set_attribute(names.ERROR_TYPE, type(error).__qualname__)
                span.set_status(Status(StatusCode.ERROR))
                raise
        for pool, jobs in by_pool.items():
            self._dispatched.add(jobs, {names.POOL: pool})

    def count_reaped(self, pools_and_ends: Sequence[tuple[str, str]]) -> None:
        """Count by pool and by the status that the jobs got."""
        for (pool, end), jobs in Counter(pools_and_ends).items():
            self._reaped.add(jobs, {names.POOL: pool, names.OUTCOME: end})
