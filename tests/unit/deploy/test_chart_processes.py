"""What the chart's pods run, compared with docker-compose.yml, the pools and the settings."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from typing import Any

import pytest

from app.policy.scaling import policy_of
from models.pools import POOLS, parse_queue
from tests import ROOT
from tests.support.chart import (
    CHART,
    EXAMPLES,
    EXPANDED,
    NAMESPACE,
    Document,
    containers,
    environment,
    of_kind,
    pods,
    render,
)
from tests.support.compose import (
    IN_FILES,
    argv_of,
    last_stage,
    own_services,
    read_compose,
    seconds_of,
)

COMPOSE = own_services(read_compose({}))
#: All value sets, as they are installed and as they are upgraded.
RENDERED = {
    (name, upgrade): render(values, upgrade=upgrade)
    for name, values in EXAMPLES.items()
    for upgrade in (False, True)
}
EVERY_RENDERING = pytest.mark.parametrize("documents", RENDERED.values(), ids=map(str, RENDERED))
#: At the first installation, at every other, and at the end of a rolling upgrade: README.md.
MIGRATE = ("flask", "--app", "app", "migrate", "--tenant", "demo")
EXPAND = (*MIGRATE, "--expand")
PRINT_SETTINGS = """
import json
from app.config import settings
from models.pools import POOLS
read = settings()
pools = {pool.name: [pool.concurrency, pool.slots] for pool in POOLS.values()}
served = list(read.served_pool_names)
print(json.dumps([read.scale_min, read.scale_max, served, read.queue_depth, pools]))
"""


def without_queue(argv: tuple[str, ...]) -> tuple[str, ...]:
    """A worker's command as it is for any queue: pool, slots and name left open."""
    words = list(argv)
    if "worker" in words:
        for flag in ("-P", "-c", "-Q", "-n"):
            words[words.index(flag) + 1] = "…"
    return tuple(words)


@EVERY_RENDERING
def test_every_command_is_one_that_compose_runs(documents: list[Document]) -> None:
    known = {argv_of(service["command"]) for service in COMPOSE.values()}
    known.add(EXPAND)
    forms = {without_queue(argv) for argv in known}
    for owner, container in containers(documents):
        argv = tuple(container["command"])
        assert without_queue(argv) in forms, owner
        assert "args" not in container, owner
        if "worker" not in argv:
            assert argv in known, owner


def test_pools_are_served_as_compose_serves_them() -> None:
    served = {
        one["metadata"]["name"].removeprefix("fairline-"): container
        for one in of_kind(RENDERED["minimal", False], "Deployment")
        for container in one["spec"]["template"]["spec"]["containers"]
    }
    services = {name: name for name in COMPOSE} | {"worker": "worker-medium"}
    for name in COMPOSE.keys() - {"migrate"}:
        assert tuple(served[services[name]]["command"]) == argv_of(COMPOSE[name]["command"])
    (job,) = of_kind(RENDERED["minimal", False], "Job")
    migrate = job["spec"]["template"]["spec"]["containers"][0]["command"]
    assert tuple(migrate) == EXPAND and argv_of(COMPOSE["migrate"]["command"]) == MIGRATE


def test_probes_are_the_health_checks_of_compose() -> None:
    for one in of_kind(RENDERED["minimal", False], "Deployment"):
        name = one["metadata"]["name"].removeprefix("fairline-")
        service = COMPOSE["worker" if name == "worker-medium" else name]
        (container,) = one["spec"]["template"]["spec"]["containers"]
        for kind in ("startupProbe", "readinessProbe"):
            probe = container[kind]
            if "exec" in probe:
                words = [word for word in probe["exec"]["command"] if word != "--starting"]
                assert words == service["healthcheck"]["test"][1:], name
            else:
                url = f"{{os.environ['{name_of_port(name)}']}}{probe['httpGet']['path']}"
                assert url in service["healthcheck"]["test"][-1], name


def name_of_port(service: str) -> str:
    return {"api": "FAIRLINE_PORT", "flower": "FLOWER_PORT"}[service]


@EVERY_RENDERING
def test_every_process_is_probed_and_an_outage_of_the_database_restarts_none(
    documents: list[Document],
) -> None:
    for one in of_kind(documents, "Deployment"):
        (container,) = one["spec"]["template"]["spec"]["containers"]
        assert {"startupProbe", "readinessProbe", "livenessProbe"} <= container.keys()
        liveness = container["livenessProbe"]
        if "exec" in liveness:
            assert "--hung" in liveness["exec"]["command"]
            assert "--starting" in container["startupProbe"]["exec"]["command"]
            assert "--starting" not in container["readinessProbe"]["exec"]["command"]
        else:  # not /readyz
            assert liveness["httpGet"]["path"] in ("/healthz", "/healthcheck")


@EVERY_RENDERING
def test_pods_may_do_nothing_but_their_work(documents: list[Document]) -> None:
    (user,) = [words[1] for words in last_stage() if words[0] == "USER"]
    for owner, spec in pods(documents):
        context = spec["securityContext"]
        assert f"{context['runAsUser']}:{context['runAsGroup']}" == user, owner
        assert context["runAsNonRoot"] and context["seccompProfile"] == {"type": "RuntimeDefault"}
        assert spec["automountServiceAccountToken"] is False
        assert spec["enableServiceLinks"] is False, "FAIRLINE_PORT=tcp://…"
        assert spec["shareProcessNamespace"], "process 1 cannot kill itself, as the watchdog does"
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        mounts = {one["mountPath"]: one["name"] for one in container["volumeMounts"]}
        volumes = {one["name"]: one for one in spec["volumes"]}
        assert mounts.keys() >= {"/tmp", "/dev/shm"} and set(mounts.values()) == volumes.keys()
        assert all("emptyDir" in volumes[mounts[path]] for path in ("/tmp", "/dev/shm"))
        assert container["resources"]["requests"] and container["resources"]["limits"]["memory"]


@EVERY_RENDERING
def test_every_variable_is_a_setting(documents: list[Document]) -> None:
    listed = set(re.findall(r"^#([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.M))
    listed |= {key for service in COMPOSE.values() for key in service["environment"]} | IN_FILES
    for owner, container in containers(documents):
        names = [one["name"] for one in container["env"]]
        assert len(names) == len(set(names)), owner
        # Others may be parts of a setting's value, behind which they would not be replaced.
        for position, variable in enumerate(container["env"]):
            parts = set(EXPANDED.findall(variable.get("value", "")))
            assert parts <= set(names[:position]), owner
            listed |= parts
        assert set(names) <= listed, owner


def test_every_setting_can_be_given_in_one_place() -> None:
    schema = json.loads((CHART / "values.schema.json").read_text())["properties"]
    plain = set(schema["settings"]["propertyNames"]["enum"])
    secret = set(schema["secrets"]["properties"]["values"]["properties"])
    derived = {
        one["name"]
        for _, container in containers(RENDERED["minimal", False])
        for one in container["env"]
        if "value" in one
    } - plain
    assert not plain & secret and not derived & secret
    given = {key for service in COMPOSE.values() for key in service["environment"]} | IN_FILES
    assert plain | secret | derived == given


def test_the_api_alone_reads_from_standbys() -> None:
    """By the URL of a Secret, or of the operator's standbys where that is asked for."""
    name = "FAIRLINE_READ_DATABASE_URL"
    operators = EXAMPLES["operators"]
    asked = operators | {"postgresql": operators["postgresql"] | {"readFromStandby": True}}
    shown = {}
    for case, documents in {
        "yours": RENDERED["minimal", False],
        "operator": RENDERED["operators", False],
        "asked for": render(asked),
    }.items():
        pods_ = dict(containers(documents))
        shown[case] = [owner for owner, one in pods_.items() if name in str(one["env"])]
    assert shown == {"yours": ["fairline-api"], "operator": [], "asked for": ["fairline-api"]}
    given = environment(dict(containers(render(asked)))["fairline-api"])
    assert given["FAIRLINE_DATABASE_URL"] == given[name].replace("-ro:", "-rw:") != given[name]


@pytest.mark.parametrize("name", ["external", "slices", "cells"])
def test_processes_take_the_settings(name: str) -> None:
    """As pydantic reads them; also the bounds of scaling are those of the ScaledObjects."""
    documents = RENDERED[name, False]
    seen = {}
    for owner, container in containers(documents):
        given = environment(container)
        key = json.dumps({key: given[key] for key in sorted(given) if "SCALE" in key})
        if key in seen or "worker" not in owner:
            continue
        seen[key] = owner
        ended = subprocess.run(
            [sys.executable, "-c", PRINT_SETTINGS],
            cwd=ROOT,
            env={"PATH": os.environ["PATH"], **given},
            capture_output=True,
            text=True,
            check=False,
        )
        assert ended.returncode == 0, ended.stderr
        least, most, served, depth, pools = json.loads(ended.stdout)
        cell = owner.partition("-worker")[0]
        assert depth == (20_000_000 if name == "external" else 10_000_000)
        assert set(served) == set(least) == set(most)
        for queue, (argv, scaled) in workers(documents, cell).items():
            pool, slice_ = parse_queue(queue)
            kind, slots = argv[argv.index("-P") + 1], int(argv[argv.index("-c") + 1])
            assert kind == pools[pool][0]
            if not slice_:
                assert slots == pools[pool][1]
            if scaled is not None and not slice_:
                bounds = (scaled["minReplicaCount"], scaled["maxReplicaCount"])
                assert bounds == (least[pool], most[pool])


def workers(
    documents: list[Document], cell: str = "fairline"
) -> dict[str, tuple[list[str], dict[str, Any] | None]]:
    """By queue: the command, and the spec of the ScaledObject."""
    scaled = {one["metadata"]["name"]: one["spec"] for one in of_kind(documents, "ScaledObject")}
    found = {}
    for owner, container in containers(documents):
        if owner.startswith(f"{cell}-worker-"):
            argv = container["command"]
            found[argv[argv.index("-Q") + 1]] = (argv, scaled.get(owner))
    return found


def test_each_pool_and_slice_is_scaled_by_what_the_api_says() -> None:
    found = workers(RENDERED["slices", False])
    slices = {"medium.reserved.acme", "medium.free", "long.reserved.big_bank"}
    assert found.keys() == {*POOLS, "gpu", *slices}
    triggers = {}
    for queue, (_, spec) in found.items():
        assert spec is not None
        (trigger,) = spec["triggers"]
        assert trigger["authenticationRef"] == {"name": "fairline-operator"}
        url = trigger["metadata"]["url"]
        base = f"http://fairline-api.{NAMESPACE}.svc:8000"  # KEDA is in another namespace
        assert url.startswith(base)
        told = trigger["metadata"]
        triggers[queue] = (url.removeprefix(base), told["valueLocation"], told["targetValue"])
    for pool in (*POOLS, "gpu"):
        assert triggers[pool] == ("/operator/scaling", f"pools.{pool}.desired", "1")
    # Reserved slots divided by a worker's; big_bank has the slots of its pool.
    location = "limits.{}.reserved".format
    assert triggers["medium.reserved.acme"] == ("/operator/tenants/acme", location("medium"), "10")
    assert triggers["long.reserved.big_bank"] == (
        *("/operator/tenants/big_bank", location("long")),
        "2",
    )
    assert triggers["medium.free"] == ("/operator/scaling", "pools.medium.desired", "10")
    minimal = workers(RENDERED["minimal", False])
    for pool in POOLS:
        policy, spec = policy_of(pool, {}, {}, {}), minimal[pool][1]
        assert spec is not None
        assert (spec["minReplicaCount"], spec["maxReplicaCount"]) == (policy.least, policy.most)


@EVERY_RENDERING
def test_a_worker_has_time_to_end_what_it_runs(documents: list[Document]) -> None:
    for owner, spec in pods(documents):
        (container,) = spec["containers"]
        grace = spec["terminationGracePeriodSeconds"]
        hook = container.get("lifecycle", {}).get("preStop", {})
        if "worker" not in container["command"]:
            assert grace >= 20
            continue
        argv = container["command"]
        pool = POOLS.get(parse_queue(argv[argv.index("-Q") + 1])[0])
        name = argv[argv.index("-n") + 1]
        if hook:
            assert hook["exec"]["command"] == ["python", "-m", "tasks.retire", name]
            # It ends here, within the longest time limit that its pool allows.
            assert pool is None or grace > pool.most_seconds, owner
        else:
            assert pool is not None and pool.checkpoint_seconds is not None
            assert grace > pool.checkpoint_seconds, owner


def test_stopping_takes_no_less_than_in_compose() -> None:
    for owner, spec in pods(RENDERED["minimal", False]):
        name = owner.removeprefix("fairline-")
        service = COMPOSE.get("worker" if name == "worker-medium" else name)
        if service and "stop_grace_period" in service:
            wanted = seconds_of(service["stop_grace_period"])
            assert spec["terminationGracePeriodSeconds"] >= wanted
