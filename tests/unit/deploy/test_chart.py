"""The Helm chart: six value sets are linted, rendered, and checked against strict schemas."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from tests.support import chart
from tests.support.chart import EXAMPLES, Document, lint, mistakes, notes, of_kind, render

SECRET = "s3cret-"
OWN_POOL = {
    "settings": {"lease_seconds": 90, "tries": 2},
    "concurrency": "prefork",
    "slots": 1,
    "replicas": {"min": 1, "max": 2},
    "retire": False,
    "gracePeriodSeconds": 9,
}
KINDS = {
    "minimal": {"Deployment", "ScaledObject", "TriggerAuthentication", "PersistentVolumeClaim"},
    "external": {"Deployment", "Secret", "HorizontalPodAutoscaler"},
    "production": {"ServiceMonitor", "PrometheusRule", "NetworkPolicy", "PodDisruptionBudget"},
    "operators": {"Cluster", "RabbitmqCluster", "Job", "Secret"},
    "slices": {"Deployment", "ScaledObject"},
    "cells": {"Cluster", "RabbitmqCluster", "ServiceMonitor", "PrometheusRule"},
}


def document_of(values: dict[str, Any], kind: str, name: str) -> Document:
    (found,) = [one for one in of_kind(render(values), kind) if one["metadata"]["name"] == name]
    return found


def test_there_are_six_value_sets() -> None:
    assert set(EXAMPLES) == set(KINDS)


@pytest.mark.parametrize("name", EXAMPLES)
def test_lint_objects_to_nothing(name: str) -> None:
    assert lint(EXAMPLES[name]) == []


@pytest.mark.parametrize("upgrade", [False, True], ids=["install", "upgrade"])
@pytest.mark.parametrize("name", EXAMPLES)
def test_what_is_rendered_is_valid(name: str, upgrade: bool) -> None:
    documents = render(EXAMPLES[name], upgrade=upgrade)
    assert [mistake for one in documents for mistake in mistakes(one)] == []
    assert {one["kind"] for one in documents} >= KINDS[name]
    named = [(one["kind"], one["metadata"]["name"]) for one in documents]
    assert len(named) == len(set(named)), "one would replace the other"


#: Characters of a name: the label that KEDA makes of its own prefix and the name, CloudNativePG's
#: own limit, and the label that a StatefulSet makes of the name, -server and a hash.
MOST = {"ScaledObject": 63 - len("keda-hpa-"), "Cluster": 50, "RabbitmqCluster": 45}


def test_the_longest_names_are_short_enough_and_differ() -> None:
    pools = [letter * 31 for letter in "xy"]
    tenants = [f"{'t' * 62}{letter}" for letter in "ab"]
    cell = {
        "postgresql": {"enabled": True},
        "rabbitmq": {"enabled": True},
        "pools": dict.fromkeys(pools, OWN_POOL),
        "slices": {f"{pool}.reserved.{tenant}": {} for pool in pools for tenant in tenants},
    }
    cells = {f"{'c' * 14}{letter}": cell for letter in "ab"}
    values = EXAMPLES["minimal"] | {"cells": cells}
    releases = [f"{'r' * 52}{letter}" for letter in "ab"]
    named = [
        (one["kind"], one["metadata"]["name"])
        for release in releases
        for one in render(values, release=release)
    ]
    assert len(named) == len(set(named))
    assert [one for one in named if len(one[1]) > MOST.get(one[0], 63)] == []
    assert len([kind for kind, _ in named if kind == "ScaledObject"]) == 2 * 2 * (3 + 2 + 4)
    for one in render(values, release=releases[0]):
        assert mistakes(one) == []
        labels = one["metadata"]["labels"] | one["spec"].get("template", one)["metadata"]["labels"]
        assert all(len(value) <= 63 for value in labels.values())


def plant(where: tuple[str | int, ...], value: object) -> Callable[[Document], None]:
    """A change deep inside a document."""

    def change(document: Document) -> None:
        place: Any = document
        for step in where[:-1]:
            place = place[step]
        place[where[-1]] = value

    return change


CONTAINER = ("spec", "template", "spec", "containers", 0)
TRIGGER = ("spec", "triggers", 0)


@pytest.mark.parametrize(
    ("kind", "name", "change", "complaint"),
    [
        ("Deployment", "fairline-api", plant(("spec", "replica"), 2), "'replica' was unexpected"),
        ("Deployment", "fairline-api", plant(("spec", "replicas"), "two"), "'two' is not of type"),
        (
            "Deployment",
            "fairline-worker-medium",
            plant((*CONTAINER, "lifecycle", "preStop", "command"), ["true"]),
            "'command' was unexpected",
        ),
        ("NetworkPolicy", "fairline", plant(("spec", "egres"), []), "'egres' was unexpected"),
        (
            "ScaledObject",
            "fairline-worker-medium",
            plant(("spec", "minReplicas"), 1),
            "minReplicas",
        ),
        (
            "ScaledObject",
            "fairline-worker-medium",
            plant((*TRIGGER, "metadata", "targetValue"), 1),
            "1 is not of type 'string'",
        ),
        (
            "ScaledObject",
            "fairline-worker-medium",
            plant(("spec", "advanced", "horizontalPodAutoscalerConfig", "behavior", "up"), {}),
            "'up' was unexpected",
        ),
        ("ScaledObject", "fairline-worker-medium", plant((*TRIGGER, "type"), "metrics"), "metrics"),
    ],
)
def test_a_planted_mistake_is_found(
    kind: str, name: str, change: Callable[[Document], None], complaint: str
) -> None:
    document = copy.deepcopy(document_of(EXAMPLES["minimal"], kind, name))
    change(document)
    found = mistakes(document)
    assert found and all(complaint in one for one in found)


def test_a_mistake_in_a_template_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(chart.CHART, tmp_path / "fairline")
    helpers = tmp_path / "fairline/templates/_helpers.tpl"
    helpers.write_text(helpers.read_text().replace("maxUnavailable: 1", "maxUnavailble: 1"))
    with helm_python.Chart.load(tmp_path / "fairline") as misspelt:
        monkeypatch.setattr(chart, "_chart", lambda: misspelt)
        found = [mistake for one in render(EXAMPLES["minimal"]) for mistake in mistakes(one)]
    assert found and all("maxUnavailble" in one for one in found)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({"pool": {}}, "pool"),
        ({"scheduler": {"replicas": "two"}}, "replicas"),
        ({"scheduler": {"replicas": 0}}, "replicas"),
        ({"settings": {"FAIRLINE_LOG_FROMAT": "json"}}, "FAIRLINE_LOG_FROMAT"),
        ({"settings": {"FAIRLINE_DATABASE_URL": "postgresql+psycopg2://h/d"}}, "DATABASE_URL"),
        ({"settings": {"FAIRLINE_POOLS": {}}}, "FAIRLINE_POOLS"),
        ({"secrets": {"values": {"FAIRLINE_DATABASE_URL": "postgresql://h/d"}}}, "DATABASE_URL"),
        ({"slices": {"medium.acme": {}}}, "medium.acme"),
        ({"rabbitmq": {"replicas": 2}}, "replicas"),
        ({"api": {"replicas": {"min": 0}}}, "replicas/min"),
        ({"blobs": {"accessMode": "ReadWriteOncePod"}}, "accessMode"),
        ({"cells": {"A": {}}}, "'A'"),
        ({"cells": {"a": {"flower": {"enabld": True}}}}, "enabld"),
    ],
)
def test_values_outside_the_schema_are_refused(values: dict[str, Any], complaint: str) -> None:
    with pytest.raises(helm_python.HelmValuesError, match=complaint):
        render({"secrets": {"existing": "fairline"}, **values})
    assert any(complaint in one for one in lint(values))


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({}, "FAIRLINE_DATABASE_URL is missing: name a Secret"),
        ({"postgresql": {"enabled": True}}, "FAIRLINE_BROKER_URL is missing"),
        (EXAMPLES["operators"] | {"secrets": {}}, "FLOWER_BASIC_AUTH is missing"),
        (
            EXAMPLES["minimal"] | {"slices": {"gpu.free": {}}},
            "slices: gpu.free is a slice of no pool",
        ),
        (
            EXAMPLES["minimal"]
            | {"slices": {"medium.reserved.a-b": {}, "medium.reserved.a_b": {}}},
            "would have the same name",
        ),
        (
            EXAMPLES["minimal"]
            | {
                "pools": {"medium-free": OWN_POOL},
                "slices": {"medium.free": {}},
            },
            "medium.free and medium-free would have the same name",
        ),
        (
            EXAMPLES["minimal"] | {"pools": {"a-b": OWN_POOL, "a_b": OWN_POOL}},
            "pools: a_b and a-b would have the same name",
        ),
        (
            EXAMPLES["minimal"]
            | {"pools": {"long": {"enabled": False}}, "slices": {"long.free": {}}},
            "long.free is a slice of a pool that is not enabled",
        ),
        (
            EXAMPLES["minimal"] | {"api": {"replicas": {"min": 9}}},
            "api: replicas.min is above replicas.max",
        ),
        (
            EXAMPLES["minimal"] | {"postgresql": {"enabled": True, "instances": 2}},
            "postgresql.instances: with 2, nothing can be written without the one standby",
        ),
        (
            EXAMPLES["minimal"] | {"pools": {"long": {"replicas": {"min": 9}}}},
            "long: replicas.min is above replicas.max",
        ),
        (
            EXAMPLES["slices"] | {"pools": {"gpu": {"settings": {}, "slots": 1}}},
            "pools.gpu.settings: a pool of your own needs lease_seconds and tries",
        ),
        ({"cells": {"a": {"cells": {"b": EXAMPLES["minimal"]}}}}, "a cell has no cells of its own"),
    ],
)
def test_what_is_missing_or_contradicts_itself_is_named(
    values: dict[str, Any], complaint: str
) -> None:
    with pytest.raises(helm_python.HelmRenderError, match=complaint):
        render(values)


def test_secrets_are_in_secrets_only() -> None:
    given = {
        "FAIRLINE_DATABASE_URL": f"postgresql+psycopg2://u:{SECRET}1@h/d",
        "FAIRLINE_READ_DATABASE_URL": f"postgresql+psycopg2://u:{SECRET}7@h/d",
        "FAIRLINE_BROKER_URL": f"amqp://u:{SECRET}2@h//",
        "FLOWER_BASIC_AUTH": f"u:{SECRET}3",
        "FLOWER_BROKER_API": f"http://u:{SECRET}4@h/",
        "FAIRLINE_CLAUDE_API_KEY": f"{SECRET}5",
        "AWS_SECRET_ACCESS_KEY": f"{SECRET}6",
    }
    documents = render({"secrets": {"values": given}})
    holding = [one for one in documents if SECRET in yaml.dump(one)]
    assert [(one["kind"], one["metadata"]["name"]) for one in holding] == [
        ("Secret", "fairline-migrate"),
        ("Secret", "fairline"),
    ]
    url = "FAIRLINE_DATABASE_URL"
    assert [one["stringData"] for one in holding] == [{url: given[url]}, given]
    assert not of_kind(documents, "ConfigMap")


def test_a_key_for_keda_is_asked_for_where_keda_is_used() -> None:
    assert "create secret generic fairline-operator" in notes(EXAMPLES["minimal"])
    assert "operator" not in notes(EXAMPLES["external"])
    mixed = EXAMPLES["minimal"] | {"cells": {"a": {}, "b": {"keda": {"enabled": False}}}}
    assert "fairline-a-operator" in notes(mixed) and "fairline-b-operator" not in notes(mixed)


def test_cells_are_complete_and_apart() -> None:
    common = EXAMPLES["minimal"]
    alone = render(common)
    pair = render(common | {"cells": {"a": {}, "b": {}}})
    for cell in ("a", "b"):
        own = [one for one in pair if one["metadata"]["name"].startswith(f"fairline-{cell}")]
        renamed = yaml.dump(own).replace(f"fairline-{cell}", "fairline")
        assert yaml.safe_load(renamed) == alone
    assert len(pair) == 2 * len(alone)


def test_a_cell_changes_what_it_names_and_nothing_else() -> None:
    documents = render(EXAMPLES["cells"])
    names = {one["metadata"]["name"] for one in of_kind(documents, "Deployment")}
    assert names == {
        *(f"fairline-a-{part}" for part in ("api", "scheduler", "flower")),
        *(f"fairline-a-worker-{pool}" for pool in ("short", "medium", "long")),
        *(f"fairline-b-{part}" for part in ("api", "scheduler")),
        *(f"fairline-b-worker-{pool}" for pool in ("short", "medium")),
    }
    scaled = {one["metadata"]["name"]: one["spec"] for one in of_kind(documents, "ScaledObject")}
    assert scaled["fairline-b-worker-medium"]["maxReplicaCount"] == 40
    assert scaled["fairline-b-worker-medium"]["minReplicaCount"] == 1
    assert scaled["fairline-a-worker-medium"]["maxReplicaCount"] == 8
    assert len(of_kind(documents, "Cluster")) == len(of_kind(documents, "RabbitmqCluster")) == 1
    assert len(of_kind(documents, "PrometheusRule")) == 1
