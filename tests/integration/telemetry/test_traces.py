"""What becomes of a trace on a job's long way: batches, crashes, retries, replays, ticks."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from flask import Flask
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF
from opentelemetry.trace import StatusCode

from app.admission import Admission, Submission
from app.errors import IdempotencyKeyReused
from app.log_ids import current_request
from app.scheduler.maintenance.observer import Observer
from app.scheduler.maintenance.reaper import Reaper
from app.telemetry.hooks import carrying_traces, emit_by, note_reaped
from app.telemetry.jobs import MOST_IDS, JobTelemetry
from app.telemetry.requests import ROUTE, Requests
from app.telemetry.scope import SCHEMA_URL
from app.telemetry.sdk import Sdk, observe_connections
from app.telemetry.tracing import Tracing, context_of, current_context
from models.jobs.admit import insert_jobs
from models.jobs.claim import JobRef
from models.jobs.ids import new_id
from models.jobs.replay import replay_dead
from models.jobs.submission import IdempotencyKey
from models.jobs.trace_context import trace_headers
from models.leadership import Leader
from models.pools import POOLS
from models.settings import DatabaseSettings
from models.store.session import open_engine
from tasks.errors import Permanent, Snooze
from tasks.worker.tracing import model_call
from tests.support.database_fixture import DatabaseFixture, FakePublisher
from tests.support.emptied import emptied
from tests.support.one_worker import OneWorker, one_worker


@dataclass
class Seen:
    """What would have been sent."""

    sdk: Sdk
    spans: InMemorySpanExporter
    metrics: InMemoryMetricReader

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self.spans.get_finished_spans() if span.name == name]

    def points(self) -> dict[str, dict[tuple[Any, ...], float]]:
        """Values by metric and by the values of their attributes."""
        data = self.metrics.get_metrics_data()
        found = [
            metric
            for resource in (data.resource_metrics if data else ())
            for scope in resource.scope_metrics
            for metric in scope.metrics
        ]
        return {
            metric.name: {
                tuple((point.attributes or {}).values()): getattr(point, "value", None)
                or getattr(point, "count", 0)
                for point in metric.data.data_points
            }
            for metric in (*found, self.sdk.durations.take())
        }


def watching(**options: Any) -> Seen:
    spans, metrics = InMemorySpanExporter(), InMemoryMetricReader()
    traces = TracerProvider(**options)
    processor = SimpleSpanProcessor(spans)
    traces.add_span_processor(processor)
    sdk = Sdk(traces, MeterProvider([metrics]), Tracing(traces, processor))
    return Seen(sdk, spans, metrics)


@pytest.fixture
def seen() -> Iterator[Seen]:
    """Telemetry on, in this very process."""
    made = watching()
    emit_by(made.sdk)
    yield made
    emit_by(None)
    made.sdk.meters.shutdown()


@pytest.fixture
def database(api_database: DatabaseFixture) -> DatabaseFixture:
    return emptied(api_database)


@pytest.fixture
def admission(database: DatabaseFixture) -> Iterator[Admission]:
    made = Admission(database.engine, FakePublisher(), 5.0)
    yield made
    made.close(1.0)


@pytest.fixture
def worker(database: DatabaseFixture) -> Iterator[OneWorker]:
    with one_worker(database) as made:
        yield made


def submission(**fields: Any) -> Submission:
    return Submission(new_id(), 1, "echo", "short", "{}", **fields)


def test_a_crash_a_retry_and_a_replay_stay_in_the_trace(
    database: DatabaseFixture, admission: Admission, worker: OneWorker, seen: Seen
) -> None:
    (job_id,) = admission.admit([submission()]).ids
    worker.database.claim(*worker.dispatched(1), worker="lost")
    database.expire_leases()
    Reaper(database.engine, database.leader, database.types).run_once(0.0)

    def fail(ctx: Any, payload: Any) -> Any:
        raise ValueError("a bug") if ctx.attempt == 1 else Permanent("hopeless")

    worker.act = fail
    for _ in range(2):
        database.execute("UPDATE jobs SET status = 'queued' WHERE status = 'scheduled'")
        worker.execute(worker.dispatched(1))
        worker.flush()
    assert replay_dead(database.engine, 1, [job_id]) == [job_id]
    worker.act = lambda ctx, payload: payload
    worker.execute(worker.dispatched(1))
    worker.flush()

    (admitted,) = seen.named("admit")
    runs = seen.named("run echo")
    about = [dict(run.attributes or {}) for run in runs]
    assert [(a["fairline.job.attempt"], a["fairline.job.crashes"]) for a in about] == [
        (1, 1),
        (2, 1),
        (1, 0),
    ]
    assert [a["fairline.job.replays"] for a in about] == [0, 0, 1]
    assert [a["fairline.job.lease"] for a in about] == [2, 3, 4]
    assert [a.get("error.type") for a in about] == ["APP_ERROR", "PERMANENT", None]
    assert not any("fairline.job.wait_seconds" in a for a in about), "who knows since when"
    assert [run.status.status_code for run in runs[:2]] == [StatusCode.ERROR] * 2
    assert not any(run.status.description or run.events for run in runs), "whose data is it"
    for run in runs:
        assert run.context.trace_id == admitted.context.trace_id
        assert [link.context.span_id for link in run.links] == [admitted.context.span_id]
    assert seen.points()["fairline.runs.settled"] == {
        ("short", "echo", "retried"): 1,
        ("short", "echo", "dead"): 1,
        ("short", "echo", "succeeded"): 1,
    }
    assert seen.points()["fairline.jobs.reaped"] == {("short", "queued"): 1}


def test_a_batch_is_admitted_in_one_span_that_names_some_of_its_jobs(
    database: DatabaseFixture, admission: Admission, worker: OneWorker, seen: Seen
) -> None:
    admitted = admission.admit([submission() for _ in range(MOST_IDS + 5)])
    (span,) = seen.named("admit")
    about = dict(span.attributes or {})
    assert about["messaging.batch.message_count"] == MOST_IDS + 5
    assert about["fairline.job.ids"] == admitted.ids[:MOST_IDS]
    assert "messaging.message.id" not in about
    assert about["messaging.destination.name"] == "short"
    worker.execute(worker.dispatched(100))
    worker.flush()
    runs = seen.named("run echo")
    assert len(runs) == MOST_IDS + 5
    assert {run.context.trace_id for run in runs} == {span.context.trace_id}
    waits = seen.points()["fairline.wait.duration"]
    assert waits == {("short",): MOST_IDS + 5}


def test_runs_are_inside_their_message_if_it_is_in_their_trace(
    database: DatabaseFixture, admission: Admission, worker: OneWorker, seen: Seen
) -> None:
    batch = admission.admit([submission(), submission()])
    other = admission.admit([submission()])
    (first, _, last), tracer = worker.dispatched(3), seen.sdk.traces.get_tracer("celery")
    kept = trace_headers(database.job(first.id).traceparent)
    assert (first.id, last.id) == (batch.ids[0], other.ids[0])
    with tracer.start_as_current_span("run/echo", context_of(kept)) as message:
        worker.execute(tuple(JobRef(job_id, 1) for job_id in (*batch.ids, *other.ids)))
    runs = {str((run.attributes or {})["fairline.job.id"]): run for run in seen.named("run echo")}
    sent = message.get_span_context()
    together, apart = seen.named("admit")
    for job_id in batch.ids:
        assert parent_of(runs[job_id]) == sent.span_id
        assert links_of(runs[job_id]) == [together.context.span_id]
    assert runs[last.id].context.trace_id == apart.context.trace_id != sent.trace_id
    assert parent_of(runs[last.id]) == apart.context.span_id
    assert links_of(runs[last.id]) == [apart.context.span_id, sent.span_id]


def parent_of(span: ReadableSpan) -> int | None:
    return span.parent.span_id if span.parent else None


def links_of(span: ReadableSpan) -> list[int]:
    return [link.context.span_id for link in span.links]


def test_every_span_and_metric_names_the_version_of_its_conventions(
    admission: Admission, worker: OneWorker, seen: Seen
) -> None:
    admission.admit([submission()])
    worker.execute(worker.dispatched(1))
    worker.flush()
    spans = seen.spans.get_finished_spans()
    assert {span.instrumentation_scope.schema_url for span in spans} == {SCHEMA_URL}
    data = seen.metrics.get_metrics_data()
    assert data is not None
    (scope,) = data.resource_metrics[0].scope_metrics
    assert scope.scope.schema_url == SCHEMA_URL


def test_durations_of_runs_have_the_attributes_of_the_conventions(
    admission: Admission, worker: OneWorker, seen: Seen
) -> None:
    admission.admit([submission()])

    def fail(ctx: Any, payload: Any) -> Any:
        raise Permanent("hopeless")

    worker.act = fail
    worker.execute(worker.dispatched(1))
    worker.flush()
    assert seen.points()["messaging.process.duration"] == {
        ("fairline", "run", "process", "short", "PERMANENT"): 1
    }


def test_calls_of_models_are_measured(seen: Seen) -> None:
    with model_call("anthropic", "claude") as call:
        call.model, call.tokens_in, call.tokens_out = "claude-1", 70, 9
    with pytest.raises(Permanent), model_call("anthropic", "claude"):
        raise Permanent("no")
    told = seen.points()
    common = ("chat", "anthropic", "claude")
    assert told["gen_ai.client.token.usage"] == {
        (*common, "claude-1", "input"): 1,
        (*common, "claude-1", "output"): 1,
    }
    assert told["gen_ai.client.operation.duration"] == {
        (*common, "claude-1"): 1,
        (*common, "Permanent"): 1,
    }


def test_all_runs_of_a_shared_message_link_to_it(worker: OneWorker, seen: Seen) -> None:
    together = threading.Barrier(4)  # each in a slot of its own
    worker.act = lambda ctx, payload: together.wait(10)
    refs = worker.refs(4)
    with seen.sdk.traces.get_tracer("celery").start_as_current_span("run/echo") as message:
        worker.execute(refs)
    links = [[link.context.span_id for link in run.links] for run in seen.named("run echo")]
    assert links == [[message.get_span_context().span_id]] * 4


def test_a_repeated_request_names_the_jobs_of_the_first(admission: Admission, seen: Seen) -> None:
    key = IdempotencyKey("k", b"1")
    (first,) = admission.admit([submission()], key).ids
    assert admission.admit([submission()], key).ids == (first,)
    with pytest.raises(IdempotencyKeyReused):
        admission.admit([submission()], IdempotencyKey("k", b"2"))
    again, refused = seen.named("admit")[1:]
    assert (again.attributes or {})["fairline.job.id"] == first
    assert (again.attributes or {})["fairline.repeated"] is True
    assert (refused.attributes or {})["error.type"] == "IDEMPOTENCY_KEY_REUSED"
    assert refused.status.status_code is StatusCode.ERROR


def test_what_is_not_sampled_runs_all_the_same(
    database: DatabaseFixture, admission: Admission, worker: OneWorker
) -> None:
    unseen = watching(sampler=ALWAYS_OFF)
    emit_by(unseen.sdk)
    try:
        (job_id,) = admission.admit([submission()]).ids
        assert not int(database.job(job_id).traceparent[-2:], 16) & 1, "the flag of what is sampled"
        emit_by((later := watching()).sdk)
        worker.execute(worker.dispatched(1))
        worker.flush()
    finally:
        emit_by(None)
    assert database.job(job_id).status == "succeeded"
    assert not unseen.spans.get_finished_spans()
    assert not later.spans.get_finished_spans(), "the submission's choice holds for the run"


@pytest.mark.parametrize("traceparent", [None, "not a context"])
def test_a_run_without_a_submission_s_trace_is_one_of_its_own(
    database: DatabaseFixture, worker: OneWorker, seen: Seen, traceparent: str | None
) -> None:
    worker.execute(worker.refs(1, traceparent=traceparent))
    (run,) = seen.named("run echo")
    assert run.parent is None
    assert not run.links


def test_each_tick_of_a_schedule_begins_a_trace(
    database: DatabaseFixture, worker: OneWorker, seen: Seen
) -> None:
    with database.engine.connect() as connection:
        insert_jobs(connection, carrying_traces([submission(), submission()]))
    worker.execute(worker.dispatched(2))
    traces = {span.context.trace_id for span in seen.named("admit")}
    assert len(traces) == 2
    assert {span.context.trace_id for span in seen.named("run echo")} == traces


def test_putting_a_job_off_is_no_error(
    database: DatabaseFixture, worker: OneWorker, seen: Seen
) -> None:
    def snooze(ctx: Any, payload: Any) -> Any:
        raise Snooze(60)

    worker.act = snooze
    worker.execute(worker.refs(1))
    worker.flush()
    (run,) = seen.named("run echo")
    assert run.status.status_code is StatusCode.UNSET
    assert not run.events, "an exception here is a way to end"
    assert (run.attributes or {})["fairline.outcome"] == "snoozed"
    assert seen.points()["fairline.runs.settled"] == {("short", "echo", "snoozed"): 1}


def test_a_publish_is_a_span_and_counts_only_if_it_succeeds(
    database: DatabaseFixture, seen: Seen
) -> None:
    database.submit(pool="short")
    dispatches = database.dispatch("short")
    jobs = JobTelemetry(seen.sdk)
    with jobs.dispatch(dispatches):
        pass
    with pytest.raises(OSError, match="away"), jobs.dispatch(dispatches):
        raise OSError("away")
    good, bad = seen.named("dispatch")
    assert (good.attributes or {})["messaging.destination.name"] == "short"
    assert bad.status.status_code is StatusCode.ERROR
    told = seen.points()
    assert told["fairline.jobs.dispatched"] == {("short",): 1}
    of_publishes = ("fairline", "dispatch", "send", "short")
    assert told["messaging.client.operation.duration"] == {
        of_publishes: 1,
        (*of_publishes, "OSError"): 1,
    }


def test_only_the_leader_tells_of_the_system(database: DatabaseFixture, seen: Seen) -> None:
    database.submit(pool="short")
    standby = Leader(database.engine, "standby")
    standby.run_once(0.0)
    Observer(seen.sdk.meters, database.engine, standby).run_once(0.0)
    assert "fairline.queue.depth" not in seen.points()
    leading = watching()
    Observer(leading.sdk.meters, database.engine, database.leader).run_once(0.0)
    told = leading.points()
    leading.sdk.meters.shutdown()
    assert told["fairline.queue.depth"] == {(pool,): int(pool == "short") for pool in POOLS}
    assert told["fairline.jobs.admitted"] == {("short",): 1}


def test_connections_that_nobody_opened_are_not_idle(database: DatabaseFixture, seen: Seen) -> None:
    url = database.engine.url.render_as_string(hide_password=False)
    engine = open_engine(DatabaseSettings(database_url=url, db_pool_size=5))
    observe_connections(seen.sdk.meters, engine, "api")
    with engine.connect(), engine.connect():
        pass
    with engine.connect():
        told = seen.points()
    engine.dispose()
    assert told["db.client.connection.count"] == {("api", "used"): 1, ("api", "idle"): 1}
    assert told["db.client.connection.max"] == {("api",): 5}


def test_nothing_is_told_without_telemetry(database: DatabaseFixture, admission: Admission) -> None:
    (job_id,) = admission.admit([submission()]).ids
    assert database.job(job_id).traceparent is None
    note_reaped([("short", "queued")])


@pytest.mark.parametrize(
    ("path", "route", "name"),
    [
        ("/jobs", None, "POST /jobs"),
        ("/jobs/01a1df91-4afc-7cf8-8fd3-75753825e56c", None, "POST /jobs/<job_id>"),
        ("/jobs/batch", "/jobs/batch", "POST /jobs/batch"),
        ("/no/such/path", None, "POST"),
    ],
)
def test_a_request_is_named_after_its_route(
    seen: Seen, path: str, route: str | None, name: str
) -> None:
    environ = {
        "REQUEST_METHOD": "POST",
        "PATH_INFO": path,
        "SERVER_NAME": "here",
        "wsgi.url_scheme": "http",
        "HTTP_TRACEPARENT": f"00-{'a' * 32}-{'b' * 16}-01",
    }

    def answering(environ: Any, start: Any) -> list[bytes]:
        if route is not None:
            environ[ROUTE] = route
        assert (context := current_context()) and context.trace_flags.sampled
        start("503 Service Unavailable", [])
        return [b"sorry"]

    requests = Requests(seen.sdk, Flask("app"))
    token = current_request.set(environ)  # as the application does
    assert requests.answer(environ, lambda *_: None, answering) == [b"sorry"]
    current_request.reset(token)
    (span,) = seen.named(name)
    assert span.context.trace_id == int("a" * 32, 16)
    assert (span.attributes or {})["http.response.status_code"] == 503
    assert (span.attributes or {})["error.type"] == "503"
    assert span.status.status_code is StatusCode.ERROR
    assert len(seen.points()["http.server.request.duration"]) == 1


@pytest.mark.parametrize("path", ["/healthz", "/metrics", "/leaderboard/events"])
def test_health_checks_and_streams_are_not_traced(seen: Seen, path: str) -> None:
    requests = Requests(seen.sdk, Flask("app"))
    assert requests.answer({"PATH_INFO": path}, lambda *_: None, lambda *_: [b"ok"]) == [b"ok"]
    assert not seen.spans.get_finished_spans()


def test_a_process_that_ends_does_not_wait_for_a_collector_that_is_away(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    hanging = threading.Event()
    made = watching()
    monkeypatch.setattr(made.sdk.traces, "force_flush", hanging.wait)
    monkeypatch.setattr("app.telemetry.sdk.FLUSH_SECONDS", 0.05)
    began = time.monotonic()
    made.sdk.close()
    made.sdk.close()
    assert time.monotonic() - began < 15, "it would wait without end"
    hanging.set()
    made.sdk.meters.shutdown()
