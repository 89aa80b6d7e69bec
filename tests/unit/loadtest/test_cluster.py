"""A cluster's layout, and what its command says where it cannot work."""

from __future__ import annotations

import json
import os
from contextlib import nullcontext
from pathlib import Path

import pytest
from sqlalchemy import make_url

from app.broker.queue_limits import queue_policy
from app.stack.spec import StackError
from loadtest.cluster import machine, requirements
from loadtest.cluster.__main__ import main
from loadtest.cluster.cluster import Cluster, new_cluster
from loadtest.cluster.engines import Etcd, RabbitMQNode
from loadtest.cluster.layout import Layout
from loadtest.cluster.machine import Machine
from loadtest.cluster.tools import variables
from models.database_url import connect_arguments, normal_url, one_server_each
from models.pools import POOLS


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    return Layout(tmp_path, 8000, tmp_path / "venv", tmp_path / "bin", {"FAIRLINE_SCORER": "x"})


def test_every_process_knows_all_servers(layout: Layout) -> None:
    arguments = connect_arguments(make_url(normal_url(layout.database_url())))
    assert arguments["target_session_attrs"] == "read-write"
    assert [one["host"][-1] for one in one_server_each(arguments)] == ["1", "2", "3"]


def test_the_brokers_have_the_limits_of_job_queues(layout: Layout) -> None:
    node = RabbitMQNode(layout, 2)
    node.prepare()
    [policy] = json.loads((node.folder / "definitions.json").read_text())["policies"]
    assert policy == queue_policy(POOLS)


def test_a_layout_is_kept_for_its_owner_alone(layout: Layout) -> None:
    layout.save()
    assert Layout.load(layout.folder) == layout
    assert (layout.folder / "layout.json").stat().st_mode & 0o777 == 0o600


def test_a_cluster_that_starts_again_keeps_its_passwords(layout: Layout) -> None:
    layout.save()
    again = new_cluster(layout.folder, 9000, layout.patroni, layout.rabbitmq, {}).layout
    assert (again.password, again.port, again.settings) == (layout.password, 9000, {})


def test_a_folder_without_a_cluster_is_named(tmp_path: Path) -> None:
    with pytest.raises(StackError, match=f"no cluster in {tmp_path}"):
        Layout.load(tmp_path)


def test_settings_of_people_do_not_change_where_the_engines_are(layout: Layout) -> None:
    changed = Layout(
        layout.folder, 8000, layout.patroni, layout.rabbitmq, {"FAIRLINE_DATABASE_URL": "other"}
    )
    assert "10.87.0.1" in changed.variables(1)["FAIRLINE_DATABASE_URL"]
    assert layout.variables(1)["FAIRLINE_SCORER"] == "x"


def test_commands_that_are_typed_on_a_machine_ask_its_own_engines(layout: Layout) -> None:
    found = variables(layout, 2)
    assert (found["PGHOST"], found["PGPASSWORD"]) == ("10.87.0.2", layout.password)
    assert found["ETCDCTL_ENDPOINTS"] == "http://10.87.0.2:2379"
    assert found["RABBITMQ_NODENAME"] == "rabbit@10.87.0.2"
    assert found["PATRONICTL_CONFIG_FILE"] == str(layout.machine(2) / "postgres/patroni.yml")
    folders = found["PATH"].split(":")
    assert {str(layout.patroni / "bin"), str(layout.rabbitmq)} <= set(folders)
    # One that is set for the server would start another one in place of the command.
    assert "detached" not in found


@pytest.mark.parametrize("migrated", [False, True])
def test_a_member_of_etcd_without_data_joins_a_cluster_that_was_there(
    layout: Layout, migrated: bool
) -> None:
    if migrated:
        layout.migrated.touch()
    (spec,) = Etcd(layout, 1).processes()
    assert (f"--initial-cluster-state={'existing' if migrated else 'new'}") in spec.argv


def test_a_command_that_takes_too_long_is_an_error_of_the_cluster(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = Machine(layout, 1)
    monkeypatch.setattr(Machine, "supervisor_pid", os.getpid())
    monkeypatch.setattr(Machine, "_enter", lambda _: ())
    monkeypatch.setattr(machine, "entered", nullcontext)
    with pytest.raises(StackError, match="machine-1: sleep 60 did not end within 1 s"):
        slow.inside("sleep", "60", seconds=1)


def test_a_rabbitmq_that_cannot_be_replaced_is_started_again(
    layout: Layout, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = []

    def refuse(*_: object) -> str:
        raise StackError("refused")

    monkeypatch.setattr(Machine, "ask", lambda _, **request: counts.append(request["count"]))
    monkeypatch.setattr(Cluster, "rabbitmqctl", refuse)
    with pytest.raises(StackError, match="refused"):
        Cluster(layout).wipe_rabbitmq(1)
    assert counts == [0, 1]


@pytest.mark.parametrize("command", ["up", "status", "wait", "down", "heal", "check"])
def test_without_root_the_command_says_so(
    command: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert main([command]) == 1
    assert "run it as root" in capsys.readouterr().out


def test_missing_packages_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(
        requirements.shutil, "which", lambda name, path: None if name == "nft" else name
    )
    assert requirements.missing() == "missing: apt-get install nftables"
