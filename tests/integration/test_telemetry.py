"""One trace from the request to the settled job, and the gauges of every process."""

from __future__ import annotations

import json
import urllib.request
from pathlib import Path

from sqlalchemy import Engine

from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from tests.integration.commands import (
    API,
    SCHEDULER,
    commands,
    free_port,
    wait_for_answer,
    worker,
)
from tests.integration.otlp_receiver import otlp_receiver

TRACE = "0af7651916cd43dd8448eb211c80319c"
GAUGES = {
    "db.client.connection.count",
    "db.client.connection.max",
    "db.client.connection.pending_requests",
}


def test_a_submission_is_traced_to_its_run_and_every_process_reports_its_pool(
    engine: Engine, database_url: str, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path
) -> None:
    port = free_port()
    with otlp_receiver() as receiver:
        env = {
            "FAIRLINE_DATABASE_URL": database_url,
            "FAIRLINE_BROKER_URL": rabbitmq.service.url(),
            "FAIRLINE_QUEUE_TYPE": "classic",
            "FAIRLINE_ANONYMOUS_TENANT": "demo",
            "FAIRLINE_SERVED_POOLS": "medium",
            "FAIRLINE_SCORE_SECONDS": "0.05",
            "FAIRLINE_PORT": str(port),
            "FAIRLINE_API_WORKERS": "1",
            "OTEL_EXPORTER_OTLP_ENDPOINT": receiver.url,
            "OTEL_BSP_SCHEDULE_DELAY": "200",
            "OTEL_METRIC_EXPORT_INTERVAL": "500",
        }
        processes = {"api": API, "scheduler": SCHEDULER, "worker": worker("medium")}
        with commands(processes, env, tmp_path):
            wait_for_answer(f"http://127.0.0.1:{port}/readyz")
            request = urllib.request.Request(
                f"http://127.0.0.1:{port}/applications",
                json.dumps({"candidate": "Ada", "payload": {}}).encode(),
                {
                    "Content-Type": "application/json",
                    "traceparent": f"00-{TRACE}-b7ad6b7169203331-01",
                },
            )
            with urllib.request.urlopen(request, timeout=5) as response:
                job_id = json.loads(response.read())["id"]
            asked = receiver.find_span("fairline-api", "POST /applications")
            run = receiver.find_span("fairline-worker", "run score_application")
            with receiver.changed:
                receiver.changed.wait_for(
                    lambda: (
                        {owner for owner, _ in receiver.metrics}
                        >= {"fairline-api", "fairline-scheduler", "fairline-worker"}
                    ),
                    20,
                )
    assert asked.trace_id.hex() == TRACE, "the caller's trace goes on"
    (link,) = run.links
    assert (link.trace_id, link.span_id) == (asked.trace_id, asked.span_id)
    attributes = {a.key: a.value.string_value or a.value.int_value for a in run.attributes}
    assert attributes["fairline.job.id"] == job_id
    assert attributes["fairline.job.lease"] == 1
    with engine.connect() as connection:
        kept = connection.exec_driver_sql("SELECT traceparent FROM jobs").scalar_one()
    assert kept == f"00-{TRACE}-{asked.span_id.hex()}-01"
    for service in ("fairline-api", "fairline-scheduler", "fairline-worker"):
        seen = {metric.name for owner, metric in receiver.metrics if owner == service}
        assert seen >= GAUGES, f"{service} sent {seen}"


def test_without_a_collector_no_sdk_is_loaded() -> None:
    import subprocess
    import sys

    code = (
        "import app.celery, app.factory, sys;"
        "assert not [m for m in sys.modules if m.startswith('opentelemetry.sdk')]"
    )
    subprocess.run([sys.executable, "-c", code], check=True, env={"PATH": ""})
