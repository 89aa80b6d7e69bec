"""One trace from the request to the model call, metrics of every process, ids in the log."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from opentelemetry.proto.trace.v1.trace_pb2 import Span
from sqlalchemy import Engine

from app.stack.ports import free_port
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from loadtest.fakes.claude import FakeClaude
from tests.support.commands import API, SCHEDULER, commands, wait_for_answer, worker
from tests.support.otlp_receiver import OtlpReceiver, otlp_receiver

TRACE = "0af7651916cd43dd8448eb211c80319c"
TRACE_ID = bytes.fromhex(TRACE)
CALLER = "b7ad6b7169203331"
STATE = "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
SERVICES = ("fairline-api", "fairline-scheduler", "fairline-worker")
OF_EVERY_PROCESS = {
    "db.client.connection.count",
    "db.client.connection.max",
    "db.client.connection.pending_requests",
}
OF_THE_LEADER = {
    "fairline.queue.depth",
    "fairline.queue.oldest_age",
    "fairline.jobs.in_flight",
    "fairline.jobs.admitted",
    "fairline.jobs.ended",
    "fairline.slots",
    "fairline.slot.utilization",
    "fairline.workers.desired",
    "fairline.workers.living",
}
OF_WORKERS = {
    "fairline.runs.settled",
    "fairline.run.duration",
    "fairline.wait.duration",
    "messaging.process.duration",
    "gen_ai.client.operation.duration",
    "gen_ai.client.token.usage",
    "flower.task.runtime.seconds",  # Celery's instrumentation
}


class Traced:
    """A front door, a scheduler and a worker that tell a collector what they do."""

    def __init__(self, receiver: OtlpReceiver, claude: FakeClaude, port: int, logs: Path) -> None:
        self.receiver = receiver
        self.claude = claude
        self.logs = logs
        self._url = f"http://127.0.0.1:{port}"

    def wait_until_ready(self) -> None:
        wait_for_answer(f"{self._url}/readyz", seconds=60)

    def post(self, path: str, body: Any, traceparent: str | None = None) -> Any:
        headers = {"Content-Type": "application/json"}
        if traceparent is not None:
            headers |= {"traceparent": traceparent, "tracestate": STATE}
        request = urllib.request.Request(self._url + path, json.dumps(body).encode(), headers)
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return json.loads(response.read())
        except urllib.error.HTTPError as error:
            return json.loads(error.read())

    def lines(self, process: str) -> list[dict[str, Any]]:
        """What a process has logged, but for what Celery prints before logging begins."""
        text = (self.logs / f"{process}.log").read_text()
        return [json.loads(line) for line in text.splitlines() if line.startswith("{")]


@contextmanager
def traced(database_url: str, broker_url: str, logs: Path) -> Iterator[Traced]:
    port = free_port()
    with otlp_receiver() as receiver, FakeClaude() as claude:
        env = {
            "FAIRLINE_DATABASE_URL": database_url,
            "FAIRLINE_BROKER_URL": broker_url,
            "FAIRLINE_QUEUE_TYPE": "classic",
            "FAIRLINE_ANONYMOUS_TENANT": "demo",
            "FAIRLINE_SERVED_POOLS": "medium",
            "FAIRLINE_SCORER": "claude",
            "FAIRLINE_CLAUDE_BASE_URL": claude.url,
            "FAIRLINE_CLAUDE_API_KEY": claude.api_key,
            "FAIRLINE_JOB_MODULES": "tests.support.talking_jobs",
            "FAIRLINE_LOG_FORMAT": "json",
            "FAIRLINE_PORT": str(port),
            "FAIRLINE_API_WORKERS": "1",
            "PYTHONPATH": ".",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_BSP_SCHEDULE_DELAY": "100",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
        }
        processes = {"api": API, "scheduler": SCHEDULER, "worker": worker("medium")}
        with commands(processes, env, logs):
            yield Traced(receiver, claude, port, logs)


def test_a_submission_is_traced_through_the_line_to_the_model_call(
    engine: Engine, database_url: str, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> None:
    with traced(database_url, rabbitmq.service.url(), tmp_path) as stack:
        stack.wait_until_ready()
        body = {"candidate": "Ada", "payload": {"letter": "I like engines."}}
        job_id = stack.post("/applications", body, f"00-{TRACE}-{CALLER}-01")["id"]
        asked = stack.receiver.find_span("fairline-api", "POST /applications")
        admitted = stack.receiver.find_span("fairline-api", "admit")
        run = stack.receiver.find_span("fairline-worker", "run score_application")
        call = stack.receiver.find_span("fairline-worker", "anthropic.messages.create")
        message = stack.receiver.find_span("fairline-worker", "run/score_application")
        check_trace(job_id, asked, admitted, message, run, call)
        check_links(run, admitted)
        check_kept_context(engine, job_id, admitted)
        check_refused_call(stack)
        check_log(stack)
        check_metrics(stack)


def check_trace(
    job_id: str, asked: Span, admitted: Span, message: Span, run: Span, call: Span
) -> None:
    """HTTP → admit → message → run → model call, all in the caller's trace."""
    spans = (asked, admitted, message, run, call)
    assert {span.trace_id.hex() for span in spans} == {TRACE}
    assert {span.trace_state for span in spans} == {STATE}
    assert asked.parent_span_id.hex() == CALLER
    assert admitted.parent_span_id == asked.span_id
    assert message.parent_span_id == admitted.span_id
    assert run.parent_span_id == message.span_id
    assert call.parent_span_id == run.span_id
    assert attributes(message)["celery.task_name"] == "score_application"
    assert asked.kind == Span.SPAN_KIND_SERVER
    assert admitted.kind == Span.SPAN_KIND_PRODUCER
    assert run.kind == Span.SPAN_KIND_CONSUMER
    assert call.kind == Span.SPAN_KIND_CLIENT
    in_common = {
        "messaging.system": "fairline",
        "messaging.destination.name": "medium",
        "messaging.message.id": job_id,
        "fairline.job.id": job_id,
        "fairline.job.type": "score_application",
        "fairline.tenant.id": 1,
    }
    assert attributes(admitted).items() >= {**in_common, "messaging.operation.type": "send"}.items()
    ran = attributes(run)
    assert ran.items() >= {**in_common, "messaging.operation.type": "process"}.items()
    assert (ran["fairline.job.lease"], ran["fairline.job.attempt"]) == (1, 1)
    assert (ran["fairline.job.crashes"], ran["fairline.outcome"]) == (0, "succeeded")
    assert 0 <= ran["fairline.job.wait_seconds"] < 20
    assert ran["messaging.client.id"].startswith("worker-medium-")
    called = attributes(call)
    assert called["gen_ai.operation.name"] == "chat"
    assert called["gen_ai.provider.name"] == "anthropic"
    assert called["gen_ai.request.model"] == called["gen_ai.response.model"] == "claude-haiku-5-5"
    assert called["gen_ai.usage.input_tokens"] > 0
    assert called["gen_ai.usage.output_tokens"] > 0
    assert called["server.address"] == "127.0.0.1"
    assert "engines" not in str(call), "an application is personal data"


def check_links(run: Span, admitted: Span) -> None:
    """To the submission, over the wait."""
    (to_submission,) = run.links
    assert (to_submission.trace_id, to_submission.span_id) == (TRACE_ID, admitted.span_id)


def check_kept_context(engine: Engine, job_id: str, admitted: Span) -> None:
    with engine.connect() as connection:
        sql = "SELECT traceparent FROM jobs WHERE id = %s"
        kept = connection.exec_driver_sql(sql, (job_id,)).scalar_one()
    assert kept == f"00-{TRACE}-{admitted.span_id.hex()}-01 {STATE}"


def check_refused_call(stack: Traced) -> None:
    """What the model's API says goes with the call, what it means for the job with the run."""
    stack.claude.behave("429")
    job_id = stack.post("/applications", {"candidate": "Bob", "payload": {}})["id"]
    run = stack.receiver.wait_for_span(
        lambda span: span.name != "admit" and attributes(span).get("fairline.job.id") == job_id
    )
    call = stack.receiver.wait_for_span(lambda span: span.parent_span_id == run.span_id)
    assert attributes(run)["error.type"] == "DEPENDENCY"
    assert attributes(call)["error.type"] == "rate_limit_error"
    assert run.status.code == call.status.code == 2


def check_log(stack: Traced) -> None:
    """Lines of a run and of a request name the job, the caller and the trace."""
    job_id = stack.post("/jobs", {"type": "talk", "payload": {"word": "hello"}})["id"]
    run = stack.receiver.find_span("fairline-worker", "run talk")
    ids = {
        "job_id": job_id,
        "job_type": "talk",
        "tenant_id": 1,
        "lease": 1,
        "attempt": 1,
        "trace_id": run.trace_id.hex(),
        "span_id": run.span_id.hex(),
    }
    said = {line["message"]: line for line in stack.lines("worker")}
    for logger, message in (
        ("fairline.job", "the job says hello"),
        ("a.library", "the library says hello"),
    ):
        assert said[message].items() >= {**ids, "logger": logger}.items()
    refused = stack.post("/jobs", {"type": "talk", "payload": {"word": "trip"}})
    assert refused["code"] == "VALIDATION_FAILED"
    (line,) = [each for each in stack.lines("api") if "the schema of talk" in each["message"]]
    assert line.items() >= {"method": "POST", "path": "/jobs", "tenant_id": 1}.items()
    assert len(line["trace_id"]) == 32 and len(line["span_id"]) == 16
    assert any(line["logger"] == "gunicorn.error" for line in stack.lines("api"))
    assert stack.lines("scheduler")


def check_metrics(stack: Traced) -> None:
    """Every process tells of its pool, the leader alone of the system, workers of their runs."""
    wanted = {(service, name) for service in SERVICES for name in OF_EVERY_PROCESS}
    wanted |= {("fairline-scheduler", name) for name in OF_THE_LEADER}
    wanted |= {("fairline-worker", name) for name in OF_WORKERS}
    wanted.add(("fairline-api", "http.server.request.duration"))
    told = stack.receiver.wait_for_metrics(wanted)
    assert not {service for service, name in told if name in OF_THE_LEADER} - {SERVICES[1]}
    for told_by_either in ("fairline.jobs.dispatched", "messaging.client.operation.duration"):
        dispatched = {service for service, name in told if name == told_by_either}
        assert dispatched, "by the scheduler or by the express lane"


def attributes(span: Span) -> dict[str, Any]:
    return {a.key: getattr(a.value, a.value.WhichOneof("value")) for a in span.attributes}


def test_without_a_collector_nothing_of_opentelemetry_is_loaded() -> None:
    code = (
        "import app.celery, app.server.factory, app.scheduler.service, tasks.worker.pipeline, sys;"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PATH": ""})


def test_an_unknown_log_format_ends_the_process_in_plain_words() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", "import app.celery"],
        env={"PATH": "", "FAIRLINE_LOG_FORMAT": "xml"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 1
    said = "fairline: FAIRLINE_LOG_FORMAT: must be 'plain' or 'json', not 'xml'"
    assert ended.stderr.strip() == said
