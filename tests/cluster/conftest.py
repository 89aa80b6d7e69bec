"""What these tests need: root, packages that ``make cluster-test`` installs, and a cluster."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.stack.ports import free_ports
from loadtest.cluster.cluster import Cluster
from loadtest.cluster.layout import Layout
from loadtest.cluster.requirements import missing
from tests.cluster.use import command, left_behind


@pytest.fixture(scope="session", autouse=True)
def machine_that_can() -> None:
    """Missing rights or packages are a skip at home and a failure in CI."""
    if lacking := missing():
        if os.environ.get("CI"):
            pytest.fail(lacking)
        pytest.skip(lacking)


@pytest.fixture(scope="session")
def before() -> dict[str, object]:
    """What was on this machine before there was a cluster."""
    return left_behind()


@pytest.fixture(scope="session")
def cluster(before: dict[str, object]) -> Iterator[Cluster]:
    """The cluster of all these tests; those in test_stop.py stop it."""
    folder = Path(tempfile.mkdtemp(prefix="fairline-cluster-"))
    (port,) = free_ports(1)
    try:
        said = command(folder, "up", port=port)
        assert said.returncode == 0, said.stdout + said.stderr
        yield Cluster(Layout.load(folder))
    finally:
        command(folder, "down")
        shutil.rmtree(folder, ignore_errors=True)
