"""A real Prometheus that scrapes two API instances of two processes each: sums are right."""

from __future__ import annotations

import json
import os
import shutil
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from sqlalchemy import Engine

from app.stack.ports import free_port
from app.stack.spec import PROJECT_ROOT
from tests.support.api_server import ApiServer, serving
from tests.support.commands import command, wait_for_answer

ALERTS = PROJECT_ROOT / "deploy/prometheus/alerts.yml"
JOBS = 40


class Prometheus:
    def __init__(self, url: str) -> None:
        self._url = url

    def ask(self, query: str) -> float | None:
        """The only value of an expression."""
        url = f"{self._url}/api/v1/query?{urllib.parse.urlencode({'query': query})}"
        with urllib.request.urlopen(url, timeout=30) as response:
            found = json.loads(response.read())["data"]["result"]
        assert len(found) <= 1, found
        return float(found[0]["value"][1]) if found else None

    def wait_for(self, query: str, wanted: float, seconds: float = 30.0) -> None:
        """Until an expression has this value."""
        deadline = time.monotonic() + seconds
        while (found := self.ask(query)) != wanted:
            assert time.monotonic() < deadline, f"{query} is {found}, not {wanted}"
            time.sleep(0.2)


@pytest.fixture
def instances(engine: Engine, database_url: str, tmp_path: Path) -> Iterator[list[ApiServer]]:
    with serving(database_url, tmp_path) as one, serving(database_url, tmp_path) as other:
        yield [one, other]


@pytest.fixture
def prometheus(instances: list[ApiServer], tmp_path: Path) -> Iterator[Prometheus]:
    program = shutil.which("prometheus")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("prometheus is not installed")
        pytest.skip("prometheus is not installed")
    config, port = tmp_path / "prometheus.yml", free_port()
    targets = [f"127.0.0.1:{instance.port}" for instance in instances]
    scrape = {"job_name": "fairline", "static_configs": [{"targets": targets}]}
    every_second = {"scrape_interval": "1s", "evaluation_interval": "1s"}
    config.write_text(
        yaml.safe_dump(
            {"global": every_second, "rule_files": [str(ALERTS)], "scrape_configs": [scrape]}
        )
    )
    argv = (
        *(program, f"--config.file={config}", f"--storage.tsdb.path={tmp_path / 'tsdb'}"),
        f"--web.listen-address=127.0.0.1:{port}",
    )
    with command(argv, {}, tmp_path / "prometheus.log"):
        wait_for_answer(f"http://127.0.0.1:{port}/-/ready")
        yield Prometheus(f"http://127.0.0.1:{port}")


def test_sums_over_all_instances_are_right_also_when_the_reporter_ends(
    instances: list[ApiServer], prometheus: Prometheus
) -> None:
    prometheus.wait_for("sum(up)", 2)
    prometheus.wait_for("sum(fairline_reports_system)", 1)
    for number in range(JOBS):
        instances[number % 2].submit_job()
    prometheus.wait_for('sum(fairline_queue_depth{pool="short"})', JOBS)
    prometheus.wait_for("sum(fairline_jobs_admitted_total)", JOBS)
    assert prometheus.ask("count(count by (instance) (fairline_build_info))") == 2
    assert prometheus.ask("count(fairline_build_info)") == 2, "one build at each"
    # The counter never falls while random processes answer: there is no reset.
    assert prometheus.ask("sum(resets(fairline_jobs_admitted_total[1m]))") == 0

    reporter, *_ = [each for each in instances if reports(each)]
    reporter.child.kill()
    prometheus.wait_for("sum(fairline_reports_system)", 1)
    prometheus.wait_for("sum(up)", 1)
    prometheus.wait_for('sum(fairline_queue_depth{pool="short"})', JOBS)
    # A rule in its waiting time: nobody serves the pool.
    prometheus.wait_for('count(ALERTS{alertname="FairlineNoWorkers"})', 1)


def reports(instance: ApiServer) -> bool:
    """Whether it reports the system; whichever of its processes is asked says the same."""
    pages = [instance.get("/metrics").body.decode() for _ in range(6)]
    (said,) = {"fairline_reports_system 1.0" in page for page in pages}
    assert {"fairline_queue_depth{" in page for page in pages} == {said}
    assert "fairline_queue_depth{" in instance.get("/metrics?system=always").body.decode()
    assert instance.get("/metrics?system=maybe").status == 422
    return said
