"""External dashboards and alerts rely on it: no metric changes its name, labels or type."""

from __future__ import annotations

import re
from pathlib import Path

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from tests.unit.telemetry.test_dashboards import everything, page

#: The expected page for that reading.
EXPECTED = (Path(__file__).parent / "metrics.txt").read_text()

PAGE = page(everything())


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
        s for s in families(page(readings))["fairline_dead_letters"].samples if s.value == 2
    )
    assert sample.labels == {"type": name}


def test_buckets_hold_what_is_below_them_whichever_version_counted_it() -> None:
    readings = everything()
    readings.totals["wait_seconds"] = {
        "short:0.5": (2, 600_000),
        "short:0.7": (1, 650_000),
        "short:inf": (1, 40_000_000_000),
        "medium:0.5": (9, 1),
    }
    found = families(page(readings))["fairline_wait_duration_seconds"].samples
    of_short = {s.labels.get("le", s.name): s.value for s in found if s.labels["pool"] == "short"}
    assert (of_short["0.25"], of_short["0.5"], of_short["0.7"], of_short["1.0"]) == (0, 2, 3, 3)
    assert of_short["+Inf"] == of_short["fairline_wait_duration_seconds_count"] == 4
    assert of_short["fairline_wait_duration_seconds_sum"] == 40_001.25


def test_an_instance_that_does_not_report_the_system_reports_itself() -> None:
    own = families(page(None))
    assert set(own) == {
        "fairline_build_info",
        "fairline_reports_system",
        "fairline_read_lag_seconds",
        "fairline_disk_free_bytes",
        "fairline_disk_size_bytes",
    }
    assert own["fairline_reports_system"].samples[0].value == 0
    assert own["fairline_build_info"].samples[0].labels == {
        "revision": "3f9a2c",
        "python": "3.11.2",
    }
