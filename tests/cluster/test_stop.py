"""The cluster of the other tests is stopped, and a start of it is killed: nothing is left."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from app.stack.spec import PROJECT_ROOT
from loadtest.cluster.cluster import Cluster
from loadtest.cluster.machine import processes_of
from loadtest.fleet import until
from tests.cluster.use import call, command, left_behind

pytestmark = pytest.mark.timeout(900)


def test_after_it_is_stopped_nothing_is_left(cluster: Cluster, before: dict[str, object]) -> None:
    folder = cluster.layout.folder
    assert processes_of(folder)
    said = command(folder, "down")
    assert (said.returncode, "Stopped." in said.stdout) == (0, True), said.stdout
    assert processes_of(folder) == []
    assert str(folder) not in Path("/proc/self/mounts").read_text()
    assert left_behind() == before
    assert call(cluster, "/healthz") == (0, None)
    assert "No cluster is running." in command(folder, "down").stdout


def test_a_start_that_was_killed_is_cleaned_up(cluster: Cluster, before: dict[str, object]) -> None:
    """Its data is that of a cluster that was stopped: that can be started again, too."""
    folder = cluster.layout.folder
    starting = subprocess.Popen(
        (sys.executable, "-m", "loadtest.cluster", "up"),
        cwd=PROJECT_ROOT,
        env={**os.environ, "CLUSTER_HOME": str(folder), "PORT": str(cluster.layout.port)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    until(lambda: cluster.machines[3].processes().get("etcd"), 120.0, "the machines")
    starting.send_signal(signal.SIGKILL)
    starting.wait()
    assert processes_of(folder)
    assert "Stopped." in command(folder, "down").stdout
    assert processes_of(folder) == []
    assert left_behind() == before
