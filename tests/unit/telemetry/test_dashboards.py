"""Who watches: the dashboard asks for what ``/metrics`` tells, the files name what is there."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from app.api.exposition import ConfiguredLimits, InstanceReadings, exposition
from app.reads.gauges import STATES, GaugeReadings
from app.stack.spec import PROJECT_ROOT
from models.pools import POOLS
from models.tallies import TallyKind
from tests.support.compose import own_services, read_compose

DEPLOY = PROJECT_ROOT / "deploy"
DASHBOARDS = sorted((DEPLOY / "grafana/dashboards").glob("*.json"))
COMPOSE = read_compose({"COMPOSE_PROFILES": "observability"})
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WATCHING = {name for name, service in SERVICES.items() if "profiles" in service}

NAME = re.compile(r"\bfairline_\w+")
#: A metric with its selector; what a range or a function puts around it does not matter.
SELECTED = re.compile(r"\b(fairline_\w+)(?:\{([^}]*)\})?")
MATCHER = re.compile(r'(\w+)\s*(?:=~|!~|!=|=)\s*"([^"]*)"')
#: What an aggregation keeps, and what it is taken over, as far as its closing parenthesis.
GROUPED = re.compile(r"\bby \(([^)]*)\) \(")
#: Environment, as the docs name it.
VARIABLE = re.compile(r"`((?:OTEL|FAIRLINE)_[A-Z_]+)")
#: What an expression begins with that keeps the labels of its first grouping.
KEEPS = ("max by", "min by", "sum by", "histogram_quantile")
MEANS = ("count", "sum")
#: Labels that Prometheus adds.
OF_TARGETS = {"instance", "job", "cell"}
SHOWN = re.compile(r"\{\{(\w+)\}\}")


def everything() -> GaugeReadings:
    """A reading in which every metric has a sample."""
    pools = dict.fromkeys(POOLS, 1)
    return GaugeReadings(
        counts={pool: dict.fromkeys(STATES, 1) for pool in POOLS},
        queue_seconds=dict.fromkeys(POOLS, 1.5),
        due_seconds=dict.fromkeys(POOLS, 1.5),
        dead_letters={"echo": 1},
        processes=[
            SimpleNamespace(
                name="worker@host:1",
                kind="worker",
                pools=list(POOLS),
                slots=10,
                busy=5,
                db_size=2,
                db_in_use=1,
                db_waiters=0,
            )
        ],
        trouble={
            "circuit": {"claude": 1},
            "quarantine": {"echo": 1},
            "throttle": {"short": 1},
            "violation": {"echo": 1},
            "runs": {"": 1},
            "retry": {"": 1},
            "forecast": {"short": 1},
            "forecast_error": {"short": 0.5},
            "degraded": {"": 0},
        },
        refused={"TENANT_RATE_LIMIT_EXCEEDED": 1},
        desired=pools,
        living=pools,
        types=[SimpleNamespace(type="echo", p95_seconds=0.5, declared_pool="short", pool="medium")],
        quotas=[SimpleNamespace(dependency="claude", kind="requests", most=60.0, remaining=50.0)],
        quota_states=[SimpleNamespace(dependency="claude", refused=1, closed=False)],
        schedules={"active": 1, "paused": 0, "ended": 0},
        tick_seconds=0.5,
        owed_seconds=dict.fromkeys(POOLS, 2.5),
        silent_seconds=0.5,
        totals={
            TallyKind.DISPATCHED: dict.fromkeys(POOLS, (3, 0)),
            TallyKind.RETRIED: {"short:APP_ERROR": (1, 0)},
            TallyKind.RECYCLED: {"long:limit": (1, 0), "long:lost": (1, 0)},
            TallyKind.WAIT_SECONDS: {"short:0.5": (2, 600_000), "short:inf": (1, 40_000_000_000)},
            TallyKind.RUN_SECONDS: {"short:0.005": (2, 6_000), "short:0.05": (1, 40_000)},
        },
    )


OWN = InstanceReadings("3f9a2c", "3.11.2", {"blobs": (5 << 30, 20 << 30)}, 0.25)
LIMITS = ConfiguredLimits(dict.fromkeys(POOLS, 8), {"free": 10.0, "enterprise": None})


def page(readings: GaugeReadings | None) -> str:
    return exposition(OWN, readings, POOLS, LIMITS)


def emitted() -> dict[str, dict[str, set[str]]]:
    """Labels and their values, by metric."""
    found: dict[str, dict[str, set[str]]] = {}
    for line in page(everything()).splitlines():
        if line.startswith("# TYPE"):
            _, _, name, kind = line.split()
            parts = ("_bucket", "_count", "_sum") if kind == "histogram" else ("",)
            found |= {name + part: {} for part in parts}
        elif not line.startswith("#"):
            name, labels = SELECTED.match(line).groups()  # type: ignore[union-attr]
            for label, value in MATCHER.findall(labels or ""):
                found[name].setdefault(label, set()).add(value)
    return found


EMITTED = emitted()


def panels(dashboard: Path) -> Iterator[dict[str, Any]]:
    for panel in json.loads(dashboard.read_text())["panels"]:
        yield panel
        yield from panel.get("panels", ())


def targets(dashboard: Path) -> list[tuple[str, str, str]]:
    """Title, expression and legend of every query."""
    return [
        (panel["title"], target["expr"], target.get("legendFormat", ""))
        for panel in panels(dashboard)
        for target in panel.get("targets", ())
    ]


def test_every_metric_has_a_sample_in_the_reading() -> None:
    text = page(everything())
    sampled = {SELECTED.match(line)[1] for line in text.splitlines() if line[0] != "#"}  # type: ignore[index]
    assert sampled == set(EMITTED)


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_every_query_asks_for_metrics_and_labels_that_are_told(dashboard: Path) -> None:
    queries = targets(dashboard)
    assert len(queries) > 20
    for title, expression, legend in queries:
        names = NAME.findall(expression)
        assert names, f"{title} asks for nothing"
        assert set(names) <= set(EMITTED), f"{title} asks for what nobody tells"
        for name, selector in SELECTED.findall(expression):
            for label, value in MATCHER.findall(selector):
                assert label in EMITTED[name], f"{title}: {name} has no label {label}"
                known = value.startswith("$") or value in EMITTED[name][label]
                assert known, f"{title}: {name} is never of {label}={value}"
        kept = [re.split(r",\s*", group) for group in GROUPED.findall(expression)]
        for label in {label for group in kept for label in group} - OF_TARGETS:
            assert all(label in EMITTED[name] for name in names), f"{title}: by ({label})"
        shown = set(SHOWN.findall(legend))
        outermost = set(kept[0]) if kept and expression.startswith(KEEPS) else set()
        assert shown <= outermost, f"{title}: the legend shows what the query dropped"


def test_every_variable_of_the_docs_reaches_every_process() -> None:
    table = (PROJECT_ROOT / "docs/telemetry.md").read_text().partition("## A trace")[0]
    told = {
        name for row in re.findall(r"^\|(.*?)\|", table, re.M) for name in VARIABLE.findall(row)
    }
    assert len(told) > 8
    ours = [name for name in SERVICES if name in ("api", "scheduler") or name.startswith("worker")]
    assert len(ours) == 2 + len(POOLS)
    for name in ours:
        assert not told - SERVICES[name]["environment"].keys(), name


@pytest.mark.parametrize("dashboard", DASHBOARDS, ids=lambda path: path.stem)
def test_a_dashboard_fits_any_data_source_and_its_panels_do_not_overlap(dashboard: Path) -> None:
    document = json.loads(dashboard.read_text())
    assert document["schemaVersion"] >= 39, "Grafana 11"
    assert document["templating"]["list"][0]["type"] == "datasource"
    covered: set[tuple[int, int]] = set()
    for panel in panels(dashboard):
        if panel["type"] != "row":
            assert panel["datasource"]["uid"] == "${datasource}", panel["title"]
        at = panel["gridPos"]
        assert at["x"] + at["w"] <= 24
        cells = {(at["x"] + x, at["y"] + y) for x in range(at["w"]) for y in range(at["h"])}
        assert not cells & covered, f"{panel['title']} lies on another panel"
        covered |= cells
    ids = [panel["id"] for panel in panels(dashboard)]
    assert len(ids) == len(set(ids))
    for variable in document["templating"]["list"][1:]:
        assert set(NAME.findall(variable["definition"])) <= set(EMITTED)


def test_the_dashboard_shows_what_somebody_on_call_asks_for() -> None:
    shown = {
        name for _, expression, _ in targets(DASHBOARDS[0]) for name in NAME.findall(expression)
    }
    kept_out = set(EMITTED) - shown
    # How many predictions a mean is of, which types were moved, who reports, means of what is shown
    # as percentiles, and the age of a snapshot in transactions beside that in seconds: for
    # /metrics' readers.
    assert kept_out == {
        "fairline_reports_system",
        *(f"fairline_{of}_duration_seconds_{part}" for of in ("wait", "run") for part in MEANS),
        "fairline_wait_predictions",
        "fairline_job_type_moved",
        "fairline_oldest_snapshot_transactions",
        "fairline_tier_submit_per_second",
        "fairline_tier_in_flight_limit",
    }


def test_prometheus_scrapes_services_that_compose_has_at_their_ports() -> None:
    scraped = yaml.safe_load((DEPLOY / "prometheus/prometheus.yml").read_text())["scrape_configs"]
    api, otlp = scraped
    # Every container of a service that may be scaled, each a target of its own.
    assert (api["job_name"], api["metrics_path"]) == ("fairline", "/metrics")
    (found,) = api["dns_sd_configs"]
    assert found["type"] == "A"
    (host,) = found["names"]
    assert SERVICES[host]["environment"]["FAIRLINE_PORT"] == str(found["port"])
    assert otlp["job_name"] == "fairline-otlp"
    (target,) = otlp["static_configs"][0]["targets"]
    host, port = target.split(":")
    assert host in WATCHING
    assert collector()["exporters"]["prometheus"]["endpoint"] == f"0.0.0.0:{port}"


def collector() -> dict[str, Any]:
    document: dict[str, Any] = yaml.safe_load((DEPLOY / "otel-collector.yaml").read_text())
    return document


def test_the_collector_takes_what_the_processes_send_and_its_pipelines_are_whole() -> None:
    config = collector()
    for name, pipeline in config["service"]["pipelines"].items():
        for part in ("receivers", "processors", "exporters"):
            assert set(pipeline[part]) <= set(config[part]), f"{name}: {part}"
    used = {
        each
        for pipeline in config["service"]["pipelines"].values()
        for each in pipeline["exporters"]
    }
    assert used == set(config["exporters"])
    assert config["exporters"]["otlp/jaeger"]["endpoint"].split(":")[0] in WATCHING
    assert config["exporters"]["prometheus"]["namespace"], "or they are taken for those of /metrics"
    http = config["receivers"]["otlp"]["protocols"]["http"]["endpoint"].rpartition(":")[2]
    sent_to = f"http://otel-collector:{http}"
    for name, service in own_services(COMPOSE).items():
        assert service["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == sent_to, name


@pytest.mark.parametrize(
    ("environment", "endpoint"),
    [({}, ""), ({"OTEL_EXPORTER_OTLP_ENDPOINT": "http://mine:4318"}, "http://mine:4318")],
)
def test_without_the_profile_nobody_is_told_but_whom_you_name(
    environment: dict[str, str], endpoint: str
) -> None:
    services = read_compose({**environment})["services"]
    assert services["api"]["environment"]["OTEL_EXPORTER_OTLP_ENDPOINT"] == endpoint


def test_grafana_finds_its_data_sources_and_dashboards() -> None:
    provisioning = DEPLOY / "grafana/provisioning"
    sources = yaml.safe_load((provisioning / "datasources/fairline.yaml").read_text())[
        "datasources"
    ]
    assert {re.match(r"http://([\w-]+):\d+$", each["url"])[1] for each in sources} <= WATCHING  # type: ignore[index]
    (provider,) = yaml.safe_load((provisioning / "dashboards/fairline.yaml").read_text())[
        "providers"
    ]
    grafana = SERVICES["grafana"]
    mounts = dict(volume.split(":")[:2][::-1] for volume in grafana["volumes"])
    assert mounts[provider["options"]["path"]] == "./deploy/grafana/dashboards"
    home = Path(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert DEPLOY / "grafana/dashboards" / home.name in DASHBOARDS


@pytest.mark.parametrize("name", sorted(WATCHING))
def test_who_watches_is_pinned_and_reachable_from_this_machine_alone(name: str) -> None:
    service = SERVICES[name]
    assert service["profiles"] == ["observability"]
    assert service["restart"] == "unless-stopped"
    assert re.fullmatch(r"[\w/-]+:v?\d+\.\d+\.\d+", service["image"])
    assert all(port.startswith("127.0.0.1:") for port in service.get("ports", ()))
    for volume in service.get("volumes", ()):
        source, _, rest = volume.partition(":")
        if source.startswith("./"):
            assert (PROJECT_ROOT / source).exists(), source
            assert rest.endswith(":ro")
        else:
            assert source in COMPOSE["volumes"]


def test_nobody_of_ours_waits_for_who_watches() -> None:
    for name, service in SERVICES.items():
        if name not in WATCHING:
            assert not WATCHING & set(service.get("depends_on", {})), name
