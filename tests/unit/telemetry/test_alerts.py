"""Alerts: each fires when it should, and asks for nothing but what ``/metrics`` reports."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from app.api.metric_names import CELL_METRICS
from tests.unit.telemetry.test_dashboards import (
    DEPLOY,
    EMITTED,
    GROUPED,
    MATCHER,
    NAME,
    OF_TARGETS,
    SELECTED,
    everything,
    page,
)

ALERTS = DEPLOY / "prometheus/alerts.yml"
CASES = Path(__file__).parent / "alerts.yml"
(GROUP,) = yaml.safe_load(ALERTS.read_text())["groups"]
RULES: dict[str, dict[str, Any]] = {rule["alert"]: rule for rule in GROUP["rules"]}
TESTS: list[dict[str, Any]] = yaml.safe_load(CASES.read_text())["tests"]
#: With what only a process of several cells reports. Its label is one of targets elsewhere.
REPORTED = {**EMITTED, **{name.partition("{")[0]: {} for name in CELL_METRICS}}
MATCHED_BY = re.compile(r"\bon \(([^)]*)\)")


@pytest.fixture(scope="module")
def promtool() -> str:
    found = shutil.which("promtool")
    if found is None:
        if os.environ.get("CI"):
            pytest.fail("promtool is not installed")
        pytest.skip("promtool is not installed")
    return found


def run(*argv: object, text: str = "") -> str:
    ended = subprocess.run(
        [*map(str, argv)], input=text, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    return ended.stdout + ended.stderr


def test_every_alert_fires_in_a_case_and_is_silent_in_a_healthy_system() -> None:
    fires: dict[bool, set[str]] = {True: set(), False: set()}
    for case in TESTS:
        for checked in case["alert_rule_test"]:
            fires[bool(checked["exp_alerts"])].add(checked["alertname"])
    assert fires == {True: set(RULES), False: set(RULES)}


def test_prometheus_agrees(promtool: str) -> None:
    assert "SUCCESS" in run(promtool, "test", "rules", CASES)
    run(promtool, "check", "config", DEPLOY / "prometheus/prometheus.yml")


def test_the_page_is_what_prometheus_expects(promtool: str) -> None:
    assert run(promtool, "check", "metrics", text=page(everything())) == ""


@pytest.mark.parametrize("alert", RULES)
def test_an_alert_asks_for_metrics_and_labels_that_are_reported(alert: str) -> None:
    expression = RULES[alert]["expr"]
    names = NAME.findall(expression)
    assert names and set(names) <= set(REPORTED)
    for name, selector in SELECTED.findall(expression):
        for label, value in MATCHER.findall(selector):
            assert value in REPORTED[name][label]
    grouped = GROUPED.findall(expression) + MATCHED_BY.findall(expression)
    labels = {label for group in grouped for label in re.split(r",\s*", group)} - OF_TARGETS
    for label in labels - {"le"}:
        assert all(label in REPORTED[name] for name in names), label
    told = set(re.findall(r"\$labels\.(\w+)", RULES[alert]["annotations"]["summary"]))
    assert told <= labels | OF_TARGETS
    assert RULES[alert]["labels"]["severity"] in ("warning", "critical")


def test_cases_are_of_series_that_are_reported() -> None:
    for case in TESTS:
        for given in case["input_series"]:
            name, selector = SELECTED.fullmatch(given["series"]).groups()  # type: ignore[union-attr]
            labels = {label for label, _ in MATCHER.findall(selector or "")}
            assert labels - OF_TARGETS == set(REPORTED[name]), given
