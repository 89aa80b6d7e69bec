"""A cluster as people use it: asked, broken, cut in two, mended. In this order."""

from __future__ import annotations

import psutil
import pytest

from app.stack.spec import StackError
from loadtest.cluster.cluster import Cluster
from loadtest.cluster.layout import NUMBERS
from loadtest.fleet import until
from tests.cluster.use import FIRST, accepted, await_score, call, command

pytestmark = pytest.mark.timeout(900)

#: Patroni believes a leader that has vanished for 20 s; the rest is an election and a busy machine.
FAILOVER_SECONDS = 90.0
#: After there is a leader again.
ACCEPT_SECONDS = 20.0
BACK_SECONDS = 300.0


def test_the_first_request_of_the_readme_gets_a_score(cluster: Cluster) -> None:
    status, said = call(cluster, "/applications", FIRST)
    assert status == 202
    assert 0 <= await_score(cluster, said["id"])["score"] <= 100


def test_status_shows_each_process_of_each_machine_and_who_leads(cluster: Cluster) -> None:
    until(cluster.has_everything, BACK_SECONDS, "everything")
    rows = {(machine, name): role for machine, name, _, role, *_ in cluster.health.rows()}
    names = {name for _, name in rows}
    assert {name for machine, name in rows if machine == "machine-2"} == names
    workers = {"worker-short-1", "worker-medium-1", "worker-long-1"}
    assert names == workers | {"etcd", "patroni", "epmd", "rabbitmq", "api", "scheduler-1"}
    for engine in ("etcd", "patroni", "scheduler-1"):
        assert [rows[f"machine-{n}", engine] for n in NUMBERS].count("leader") == 1, engine
    assert "medium" in rows[f"machine-{cluster.queue_leader('medium')}", "rabbitmq"]
    printed = command(cluster.layout.folder, "status").stdout
    assert all(f"machine-{number}" in printed for number in NUMBERS)
    assert "leader" in printed and "sync replica" in printed


def test_a_second_cluster_in_the_same_folder_is_refused(cluster: Cluster) -> None:
    said = command(cluster.layout.folder, "up", port=cluster.layout.port)
    assert said.returncode == 1
    assert "a cluster is running in" in said.stdout


def test_what_dies_on_a_machine_is_replaced(cluster: Cluster) -> None:
    machine = cluster.machines[1]
    killed = {name: machine.processes()[name] for name in ("etcd", "rabbitmq", "worker-short-1")}
    for name in killed:
        machine.kill(name)
    until(lambda: not killed.items() & machine.processes().items(), 60.0, "other processes")
    cluster.wait(cluster.has_everything, BACK_SECONDS, "everything")


def test_a_process_or_a_machine_stands_still_until_it_is_thawed(cluster: Cluster) -> None:
    machine = cluster.machines[2]
    worker, etcd = (psutil.Process(machine.processes()[name]) for name in ("worker-long-1", "etcd"))
    machine.freeze("worker-long-1")
    assert {one.status() for one in (worker, *worker.children())} == {psutil.STATUS_STOPPED}
    assert etcd.status() != psutil.STATUS_STOPPED
    machine.freeze()
    assert etcd.status() == psutil.STATUS_STOPPED
    machine.thaw()
    assert psutil.STATUS_STOPPED not in (worker.status(), etcd.status())


def test_an_engine_s_data_is_lost_on_one_machine_and_comes_back(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    replica = next(number for number in NUMBERS if number != leader)
    with pytest.raises(StackError, match="only a replica"):
        cluster.rebuild_postgres(leader)
    cluster.rebuild_postgres(replica)
    cluster.wipe_rabbitmq(replica)
    cluster.wait(cluster.has_everything, BACK_SECONDS, "everything")
    assert await_score(cluster, accepted(cluster, "after"))


def test_a_machine_without_the_leader_is_switched_off_and_on(cluster: Cluster) -> None:
    leader = cluster.wait_for_leader()
    number = next(n for n in NUMBERS if n != leader and n != cluster.queue_leader("medium"))
    cluster.stop_machine(number)
    assert cluster.machines[number].processes() == {}
    during = until(lambda: accepted(cluster, "during"), ACCEPT_SECONDS, "acceptance")
    await_score(cluster, during)
    cluster.start_machine(number)
    cluster.wait(cluster.has_everything, BACK_SECONDS, "everything")


def test_a_machine_that_is_cut_off_stops_nothing(cluster: Cluster) -> None:
    before = [accepted(cluster, f"before {number}") for number in range(5)]
    assert all(before)
    old = cluster.wait_for_leader()
    said = command(cluster.layout.folder, "cut", str(old))
    assert said.returncode == 0, said.stdout
    new = until(lambda: other_leader(cluster, old), FAILOVER_SECONDS, "another leader")
    first = until(lambda: accepted(cluster, "first"), ACCEPT_SECONDS, "an application accepted")
    assert cluster.health.postgres(old) != "leader"
    during = [
        until(lambda n=number: accepted(cluster, f"during {n}"), ACCEPT_SECONDS, "acceptance")
        for number in range(10)
    ]
    for application in (*before, first, *during):
        await_score(cluster, application)
    assert cluster.patroni_leader() == new
    assert command(cluster.layout.folder, "heal").returncode == 0
    cluster.wait(cluster.has_everything, BACK_SECONDS, "everything")


def other_leader(cluster: Cluster, old: int) -> int | None:
    leader = cluster.patroni_leader()
    return leader if leader != old else None
