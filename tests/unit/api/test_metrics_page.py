"""External dashboards and alerts rely on it: no metric changes its name, labels or type."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from app.api.routes.metrics import exposition
from models.pools import POOLS
from tests.unit.telemetry.test_dashboards import everything

#: The expected page for that reading.
EXPECTED = (Path(__file__).parent / "metrics.txt").read_text()
OBJECTIVES = {"short": 5.0, "medium": 5.0, "long": 60.0}

RATES = {"free": 10.0, "enterprise": None}

PAGE = exposition(everything(), POOLS, OBJECTIVES, RATES)


def families(text: str) -> dict[str, Metric]:
    return {family.name: family for family in text_string_to_metric_families(text)}


def test_prometheus_reads_the_same_names_labels_types_texts_and_values() -> None:
    assert families(PAGE) == families(EXPECTED)


def test_metrics_are_declared_in_the_same_words_and_order() -> None:
    declared = re.compile(r"^# .*", re.M)
    assert declared.findall(PAGE) == declared.findall(EXPECTED)


def test_there_are_no_metrics_of_the_process_and_no_creation_times() -> None:
    names = set(re.findall(r"^\w+", PAGE, re.M))
    assert all(name.startswith("fairline_") for name in names)
    assert not any(name.endswith(("_created", "_total_total")) for name in names)


def test_a_label_may_hold_anything() -> None:
    name = 'so "called" \\ new\nline'
    readings = everything()
    readings.dead_letters[name] = 2
    [sample] = (
        s
        for s in families(exposition(readings, POOLS))["fairline_dead_letters"].samples
        if s.value == 2
    )
    assert sample.labels == {"type": name}
