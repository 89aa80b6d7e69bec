"""Every container of the chart, booted: read-only, with its own environment, probes and hooks."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

from app.stack.ports import free_port
from app.stack.postgres import EmbeddedPostgres
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running
from loadtest.fleet import QUEUE_TYPE
from tests.support.chart import EXAMPLES, Document, containers, environment, render
from tests.support.pod import Pod, namespaces_allowed

MIGRATE = "migrate"
PROBES = ("startupProbe", "readinessProbe", "livenessProbe")


@pytest.fixture
def given(database_url: str, rabbitmq: Running[EmbeddedRabbitMQ], tmp_path: Path) -> dict[str, str]:
    """What the Secret, the claim and the machine's ports are here."""
    (tmp_path / "blobs").mkdir()
    return {
        "FAIRLINE_DATABASE_URL": database_url,
        "FAIRLINE_BROKER_URL": rabbitmq.service.url(),
        "FAIRLINE_QUEUE_TYPE": QUEUE_TYPE,
        "FLOWER_BASIC_AUTH": "operator:password",
        "FLOWER_BROKER_API": rabbitmq.service.api_url(),
        "FAIRLINE_BLOB_URL": str(tmp_path / "blobs"),
        "FAIRLINE_PORT": str(free_port()),
        "FLOWER_PORT": str(free_port()),
        "FAIRLINE_SCORE_SECONDS": "0.1",
    }


@pytest.fixture
def documents() -> dict[str, Document]:
    """The containers of the smallest value set, by the name of what owns them."""
    if not namespaces_allowed():
        pytest.skip("pods need root and the right to mount; THEY WERE NOT BOOTED")
    rendered = render(EXAMPLES["minimal"])
    return {
        MIGRATE if container["name"] == MIGRATE else name: container
        for name, container in containers(rendered)
    }


class Kubelet:
    """Starts pods, and starts them again when they have ended."""

    def __init__(self, given: dict[str, str], logs: Path) -> None:
        self._given, self._logs = given, logs
        self.pods: dict[str, Pod] = {}

    def start(self, documents: dict[str, Document]) -> None:
        for name, container in documents.items():
            environment_here = environment(container) | self._given
            self.pods[name] = Pod(name, container, environment_here, self._logs)

    def wait_started(self, documents: dict[str, Document], seconds: float = 120) -> None:
        """Until all of them are ready."""
        deadline = time.monotonic() + seconds
        waiting = set(self.pods)
        while waiting:
            for name in sorted(waiting):
                pod = self.pods[name]
                assert time.monotonic() < deadline, pod.log()
                if pod.has_exited():
                    self.start({name: documents[name]})
                elif pod.passes("readinessProbe"):
                    waiting.discard(name)
            time.sleep(0.5)

    def migrate(self, container: Document) -> None:
        migrate = Pod("migrate", container, environment(container) | self._given, self._logs)
        assert migrate.exited(60) == 0, migrate.log()

    def close(self) -> None:
        for pod in self.pods.values():
            pod.kill()


@pytest.fixture
def kubelet(
    documents: dict[str, Document], given: dict[str, str], tmp_path: Path
) -> Iterator[Kubelet]:
    with closing(Kubelet(given, tmp_path)) as made:
        yield made


def test_all_of_them_start_score_an_application_and_stop(
    documents: dict[str, Document], kubelet: Kubelet, given: dict[str, str]
) -> None:
    kubelet.migrate(documents.pop(MIGRATE))
    kubelet.start(documents)
    kubelet.wait_started(documents)
    pods = kubelet.pods
    assert len(pods) == 6
    for pod in pods.values():
        assert [probe for probe in PROBES if not pod.passes(probe)] == [], pod.log()
    issue = "flask --app app keys issue --tenant demo"
    key = pods["fairline-api"].execute(issue.split()).stdout.strip()
    request = urllib.request.Request(
        f"http://127.0.0.1:{given['FAIRLINE_PORT']}/applications",
        json.dumps({"candidate": "alice", "payload": "5 years backend"}).encode(),
        {
            "Authorization": f"Bearer {key}",
            "Content-Type": "application/json",
            "Prefer": "wait=30",
        },
    )
    with urllib.request.urlopen(request, timeout=40) as response:
        assert json.load(response)["status"] == "scored"
    for pod in pods.values():
        pod.stop()
    assert {name: pod.exited(30) for name, pod in pods.items()} == dict.fromkeys(pods, 0)


def test_a_database_that_comes_later_is_waited_for(
    documents: dict[str, Document],
    kubelet: Kubelet,
    given: dict[str, str],
    postgres: Running[EmbeddedPostgres],
) -> None:
    """As at the first installation of a release that brings its own database."""
    migration = documents.pop(MIGRATE)
    given["FAIRLINE_DATABASE_URL"] = postgres.service.url("later")
    kubelet.start(documents)
    time.sleep(5)
    for name in ("scheduler", "worker-short", "worker-medium", "worker-long"):
        pod = kubelet.pods[f"fairline-{name}"]
        assert pod.has_exited() or not pod.passes("readinessProbe")
    postgres.service.create_database("later")
    time.sleep(1)
    kubelet.migrate(migration)
    kubelet.wait_started(documents)
