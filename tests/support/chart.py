"""The Helm chart: linted, rendered and checked without a cluster.

Kubernetes' own kinds are checked against its published schemas, without mercy for unknown fields.
Custom resources are checked against :mod:`tests.support.custom_resources`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from functools import cache
from typing import Any

import helm_python
import jsonschema
import yaml
from kubernetes_validate.utils import schema_contents
from referencing import Registry, Resource

from tests import ROOT
from tests.support.custom_resources import DEFINITIONS, SCHEMAS

CHART = ROOT / "deploy/helm/fairline"
#: The value sets that are shown to users, by name.
EXAMPLES: dict[str, dict[str, Any]] = {
    path.stem: yaml.safe_load(path.read_text()) or {}
    for path in sorted((CHART / "examples").glob("*.yaml"))
}
#: The oldest and the newest Kubernetes that the chart is checked against.
KUBERNETES = ("1.30", "1.37")
RELEASE, NAMESPACE = "fairline", "jobs"
#: A variable that Kubernetes replaces in the value of another.
EXPANDED = re.compile(r"\$\((\w+)\)")

Document = dict[str, Any]


@cache
def _chart() -> helm_python.Chart:
    return helm_python.Chart.load(CHART)


def render(
    values: Mapping[str, Any], *, upgrade: bool = False, release: str = RELEASE
) -> list[Document]:
    """What would be applied, hooks included."""
    files = _files(values, upgrade=upgrade, release=release)
    texts = [text for name, text in sorted(files.items()) if name.endswith(".yaml")]
    return [one for text in texts for one in yaml.load_all(text, UniqueKeys) if one]


def notes(values: Mapping[str, Any]) -> str:
    """What `helm install` says at the end."""
    (text,) = [text for name, text in _files(values).items() if name.endswith("NOTES.txt")]
    return text


def _files(
    values: Mapping[str, Any], *, upgrade: bool = False, release: str = RELEASE
) -> Mapping[str, str]:
    # The renderer itself trusts its values; `helm install` does not.
    _chart().validate_schema(dict(values))
    return _chart().render(
        dict(values), name=release, namespace=NAMESPACE, is_install=not upgrade, is_upgrade=upgrade
    )


class UniqueKeys(yaml.CSafeLoader):
    """YAML as Kubernetes reads it: no key twice. By the parser in C, as there are many pages."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key twice: {keys}{node.start_mark}"
        return super().construct_mapping(node, deep=deep)


def lint(values: Mapping[str, Any]) -> list[str]:
    """What `helm lint --strict` objects to."""
    report = helm_python.lint(CHART, dict(values), strict=True, namespace=NAMESPACE)
    told = [f"{one['path']}: {one['error']}" for one in report["messages"] if one["severity"] > 1]
    return told + list(report["errors"])


@cache
def _types(version: str) -> Any:
    """The types of a version of Kubernetes, without mercy for unknown fields."""
    folder = f"kubernetes-json-schema/v{version}.0-local-strict"
    types = Resource.from_contents(schema_contents(f"{folder}/_definitions.json", version))
    return Registry().with_resource(DEFINITIONS, types).crawl()


@cache
def _validator(api_version: str, kind: str, version: str) -> jsonschema.Draft202012Validator:
    schema = SCHEMAS.get((api_version, kind))
    if schema is None:
        # networking.k8s.io/v1 is networking-v1 there.
        group = re.sub(r"^([^./]*)(?:\.[^/]*)?/", r"\1-", api_version)
        folder = f"kubernetes-json-schema/v{version}.0-local-strict"
        schema = schema_contents(f"{folder}/{kind.lower()}-{group}.json", version)
    return jsonschema.Draft202012Validator(schema, registry=_types(version))


def mistakes(document: Document) -> list[str]:
    """What Kubernetes, or the operator of a custom resource, would refuse or ignore."""
    kind, name = document["kind"], document["metadata"]["name"]
    return [
        f"{kind}/{name}: {'.'.join(map(str, error.absolute_path))}: {error.message} ({version})"
        for version in KUBERNETES
        for error in _validator(document["apiVersion"], kind, version).iter_errors(document)
    ]


def of_kind(documents: list[Document], kind: str) -> list[Document]:
    return [one for one in documents if one["kind"] == kind]


def pods(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    """The pods of Deployments and Jobs: the owner's name and the pod's spec."""
    for one in documents:
        if one["kind"] in ("Deployment", "Job"):
            yield one["metadata"]["name"], one["spec"]["template"]["spec"]


def containers(documents: list[Document]) -> Iterator[tuple[str, Document]]:
    """Every container, with the name of what owns it."""
    for owner, spec in pods(documents):
        for container in spec.get("initContainers", []) + spec["containers"]:
            yield owner, container


def environment(container: Document) -> dict[str, str]:
    """The variables as the container would have them; what is in Secrets is made up.

    Secrets do not have what is optional.
    """
    found: dict[str, str] = {}
    urls = {"FAIRLINE_DATABASE_URL": "postgresql+psycopg2://h/d", "FAIRLINE_BROKER_URL": "amqp://h"}
    for one in container["env"]:
        if one.get("valueFrom", {}).get("secretKeyRef", {}).get("optional"):
            continue
        text = one.get("value", urls.get(one["name"], "secret"))
        found[one["name"]] = EXPANDED.sub(lambda part: found[part[1]], text)
    return found
