"""What the chart's resources say of each other: selectors, Secrets, hooks, alerts, operators."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import helm_python
import pytest
import yaml

from app.broker_url import node_urls
from app.stack.rabbitmq import CONFIGURATION
from tests import ROOT
from tests.support.chart import (
    CHART,
    EXAMPLES,
    Document,
    containers,
    environment,
    mistakes,
    of_kind,
    pods,
    render,
)
from tests.support.compose import read_compose
from tests.unit.deploy.test_chart_processes import EVERY_RENDERING, EXPAND, MIGRATE, RENDERED

README = (CHART / "README.md").read_text()


def test_the_readme_s_ten_commands_fit_the_chart() -> None:
    block = re.search(r"```sh\n(.*?)```", README, re.S)
    assert block is not None
    typed = block[1].splitlines()
    assert len(typed) == 10
    assert "latest" not in block[1], "operators are pinned"
    (install,) = [shlex.split(line) for line in typed if line.startswith("helm install fairline ")]
    values = EXAMPLES[Path(install[install.index("-f") + 1]).stem]
    changes = helm_python.parse_set_string(install[install.index("--set") + 1])
    documents = render(
        {key: values.get(key, {}) | changes.get(key, {}) for key in values | changes}
    )
    assert [mistake for one in documents for mistake in mistakes(one)] == []
    images = {container["image"] for _, container in containers(documents)}
    assert images == set(re.findall(r"fairline:[\d.]+", block[1]))
    names = {f"{one['kind'].lower()}/{one['metadata']['name']}" for one in documents}
    for kind, name in re.findall(r"(deploy|service)/(fairline-[\w-]+)", README):
        assert f"{kind.replace('deploy', 'deployment')}/{name}" in names
    (authentication,) = of_kind(documents, "TriggerAuthentication")
    (token,) = authentication["spec"]["secretTargetRef"]
    assert f"secret generic {token['name']} --from-literal={token['key']}=" in README


def test_the_readme_lists_every_value_set() -> None:
    assert set(re.findall(r"^\| \[(\w+)\]\(examples/\1\.yaml\)", README, re.M)) == set(EXAMPLES)


def selected(selector: dict[str, str], documents: list[Document]) -> Iterator[str]:
    """Deployments and Jobs whose pods have these labels."""
    for one in documents:
        if one["kind"] in ("Deployment", "Job"):
            labels = one["spec"]["template"]["metadata"]["labels"]
            if selector.items() <= labels.items():
                yield one["metadata"]["name"]


@EVERY_RENDERING
def test_what_refers_to_something_finds_it(documents: list[Document]) -> None:
    names = {(one["kind"], one["metadata"]["name"]) for one in documents}
    deployments = {name for kind, name in names if kind == "Deployment"}
    limited = [
        name
        for budget in of_kind(documents, "PodDisruptionBudget")
        for name in selected(budget["spec"]["selector"]["matchLabels"], documents)
    ]
    assert sorted(limited) == sorted(deployments), "each has one budget"
    for kind in ("Service", "NetworkPolicy"):
        for one in of_kind(documents, kind):
            spec = one["spec"]
            labels = spec["selector"] if kind == "Service" else spec["podSelector"]["matchLabels"]
            assert [*selected(labels, documents)], one["metadata"]["name"]
    for kind in ("ScaledObject", "HorizontalPodAutoscaler"):
        for one in of_kind(documents, kind):
            target = one["spec"]["scaleTargetRef"]["name"]
            assert target in deployments
            (deployment,) = [
                each
                for each in of_kind(documents, "Deployment")
                if each["metadata"]["name"] == target
            ]
            assert "replicas" not in deployment["spec"], "an upgrade would undo the scaling"
    for name, spec in pods(documents):
        for volume in spec["volumes"]:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or ("PersistentVolumeClaim", claim) in names
        (container,) = spec["containers"]
        for one in container["env"]:
            key = one.get("valueFrom", {}).get("secretKeyRef")
            if key and not key.get("optional"):
                there = made(documents) | operated(documents) | {"fairline", "fairline-b"}
                assert key["name"] in there, (name, one["name"])


def made(documents: list[Document]) -> set[str]:
    """The Secrets of the release."""
    return {one["metadata"]["name"] for one in of_kind(documents, "Secret")}


def operated(documents: list[Document]) -> set[str]:
    """The Secrets that operators make of the release's clusters."""
    suffixes = {"Cluster": "app", "RabbitmqCluster": "default-user"}
    return {
        f"{one['metadata']['name']}-{suffix}"
        for kind, suffix in suffixes.items()
        for one in of_kind(documents, kind)
    }


def hooks(documents: list[Document]) -> list[Document]:
    return [one for one in documents if "helm.sh/hook" in one["metadata"].get("annotations", {})]


OWN_POSTGRESQL = EXAMPLES["minimal"] | {"rabbitmq": {"enabled": True}}
OWN_RABBITMQ = EXAMPLES["minimal"] | {"postgresql": {"enabled": True}}


@pytest.mark.parametrize("upgrade", [False, True], ids=["install", "upgrade"])
@pytest.mark.parametrize("values", [*EXAMPLES.values(), OWN_POSTGRESQL, OWN_RABBITMQ])
def test_hooks_need_no_more_than_is_there_before_the_release(
    values: dict[str, Any], upgrade: bool
) -> None:
    documents = render(values, upgrade=upgrade)
    there = made(hooks(documents)) | ({"fairline", "fairline-b"} - made(documents))
    if upgrade:
        there |= made(documents) | operated(documents)
    for name, container in containers(hooks(documents)):
        needed = {
            one["valueFrom"]["secretKeyRef"]["name"]
            for one in container["env"]
            if "valueFrom" in one and not one["valueFrom"]["secretKeyRef"].get("optional")
        }
        assert needed <= there, name


@pytest.mark.parametrize("name", EXAMPLES)
def test_every_pod_has_a_network_policy_that_lets_nobody_in(name: str) -> None:
    documents = RENDERED[name, False]
    policies = of_kind(documents, "NetworkPolicy")
    closed = [one for one in policies if one["spec"]["policyTypes"] == ["Ingress", "Egress"]]
    covered = [
        name
        for one in closed
        for name in selected(one["spec"]["podSelector"]["matchLabels"], documents)
    ]
    assert sorted(covered) == sorted(owner for owner, _ in pods(documents))
    assert not any("ingress" in one["spec"] for one in closed)
    opened = {
        name
        for one in policies
        if "ingress" in one["spec"]
        for name in selected(one["spec"]["podSelector"]["matchLabels"], documents)
    }
    assert all(name.endswith(("-api", "-flower")) for name in opened)


def test_migration_comes_first_and_finds_its_secrets() -> None:
    for name, upgrade in RENDERED:
        documents = RENDERED[name, upgrade]
        for job in of_kind(documents, "Job"):
            cell = job["metadata"]["labels"]["app.kubernetes.io/instance"]
            operated = any(
                one["metadata"]["name"] == f"{cell}-postgresql"
                for one in of_kind(documents, "Cluster")
            )
            hooks = job["metadata"].get("annotations", {}).get("helm.sh/hook")
            # A database that is created with the release is there for upgrades only.
            assert hooks == (None if operated and not upgrade else "pre-install,pre-upgrade")
            assert migrated(job) == EXPAND
    documents = RENDERED["external", False]
    (job,) = of_kind(documents, "Job")
    before = [
        one
        for one in of_kind(documents, "Secret")
        if "helm.sh/hook" in one["metadata"].get("annotations", {})
    ]
    weight = "helm.sh/hook-weight"
    assert [int(one["metadata"]["annotations"][weight]) for one in before] == [-1]
    assert int(job["metadata"]["annotations"][weight]) == 0
    keys = {
        one["valueFrom"]["secretKeyRef"]["name"]
        for one in job["spec"]["template"]["spec"]["containers"][0]["env"]
        if "valueFrom" in one
    }
    assert keys == {before[0]["metadata"]["name"]}


def migrated(job: Document) -> tuple[str, ...]:
    return tuple(job["spec"]["template"]["spec"]["containers"][0]["command"])


@pytest.mark.parametrize("upgrade", [False, True], ids=["install", "upgrade"])
def test_what_the_version_before_needs_goes_only_for_the_version_that_is_named(
    upgrade: bool,
) -> None:
    """`helm template`, as Argo CD runs it, is always an installation, and the values stay."""

    def job_of(tag: str, contract: str, **changes: Any) -> Document:
        given = {"image": {"tag": tag}, "migration": {"contract": contract}, **changes}
        (job,) = of_kind(render(EXAMPLES["minimal"] | given, upgrade=upgrade), "Job")
        return job

    assert migrated(job_of("1.1", "")) == EXPAND
    assert migrated(job_of("1.1", "1.1")) == MIGRATE
    assert migrated(job_of("1.2", "1.1")) == EXPAND
    assert migrated(job_of("1.2", "1.1", api={"image": {"tag": "1.1"}})) == EXPAND
    with pytest.raises(helm_python.HelmRenderError, match="the API is not of version 1"):
        job_of("1.2", "1.2", api={"image": {"tag": "1.1"}})
    # A Job cannot be changed, only replaced by another.
    jobs = [job_of("1.1", ""), job_of("1.1", "1.1"), job_of("1.2", "1.1")]
    assert len({one["metadata"]["name"] for one in jobs}) == 3


def test_only_who_uses_blobs_has_the_keys_of_their_store() -> None:
    holding = {
        name for name, one in containers(RENDERED["external", False]) if "AWS_SECRET" in str(one)
    }
    deployments = {
        one["metadata"]["name"] for one in of_kind(RENDERED["external", False], "Deployment")
    }
    assert holding == deployments - {"fairline-flower"}
    (job,) = of_kind(RENDERED["external", False], "Job")
    (container,) = job["spec"]["template"]["spec"]["containers"]
    secret = [one["name"] for one in container["env"] if "valueFrom" in one]
    assert secret == ["FAIRLINE_DATABASE_URL", "FAIRLINE_OWNER_DATABASE_URL"]


def test_a_cell_is_told_from_all_others_in_the_metrics() -> None:
    cells = {
        one["spec"]["endpoints"][0]["relabelings"][0]["replacement"]
        for name in ("cells", "production")
        for one in of_kind(RENDERED[name, False], "ServiceMonitor")
    }
    assert cells == {"jobs/fairline-a", "jobs/fairline-b", "jobs/fairline"}


@EVERY_RENDERING
def test_a_worker_that_is_not_ready_may_still_be_at_work(documents: list[Document]) -> None:
    for budget in of_kind(documents, "PodDisruptionBudget"):
        if "-worker-" in budget["metadata"]["name"]:
            assert budget["spec"]["unhealthyPodEvictionPolicy"] == "IfHealthyBudget"


def test_nodes_of_rabbitmq_are_apart_and_each_is_named_to_clients() -> None:
    documents = RENDERED["operators", False]
    (cluster,) = of_kind(documents, "RabbitmqCluster")
    name = cluster["metadata"]["name"]
    labels = {"app.kubernetes.io/name": name}  # as the operator has it
    apart = cluster["spec"]["affinity"]["podAntiAffinity"]
    (term,) = apart["preferredDuringSchedulingIgnoredDuringExecution"]
    assert term["podAffinityTerm"]["labelSelector"]["matchLabels"] == labels
    budgets = {one["metadata"]["name"]: one for one in of_kind(documents, "PodDisruptionBudget")}
    assert budgets[name]["spec"] == {"maxUnavailable": 1, "selector": {"matchLabels": labels}}
    for owner, container in containers(documents):
        if "migrate" not in owner:
            urls = node_urls(environment(container)["FAIRLINE_BROKER_URL"])
            hosts = [url.partition("@")[2] for url in urls]
            assert hosts == [f"{name}-server-{n}.{name}-nodes:5672//" for n in range(3)]


def test_alerts_are_those_that_are_tested() -> None:
    alerts = yaml.safe_load((ROOT / "deploy/prometheus/alerts.yml").read_text())
    for name in ("production", "cells"):
        (rule,) = of_kind(RENDERED[name, False], "PrometheusRule")
        assert rule["spec"] == alerts
    labels = {"release": "prometheus"}
    for kind in ("PrometheusRule", "ServiceMonitor"):
        (one,) = of_kind(RENDERED["production", False], kind)
        assert labels.items() <= one["metadata"]["labels"].items()


def test_services_of_operators_are_set_up_as_those_of_compose() -> None:
    documents = RENDERED["operators", False]
    (broker,) = of_kind(documents, "RabbitmqCluster")
    assert broker["spec"]["rabbitmq"]["additionalConfig"].strip() in CONFIGURATION
    (cluster,) = of_kind(documents, "Cluster")
    services = read_compose({})["services"]
    given = dict(re.findall(r"-c (\w+)=(\S+)", services["postgres"]["command"]))
    assert cluster["spec"]["postgresql"]["parameters"].keys() == given.keys()
    assert cluster["spec"]["postgresql"]["synchronous"]["dataDurability"] == "required"
    assert broker["spec"]["image"] == services["rabbitmq"]["image"]
