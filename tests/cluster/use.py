"""A cluster as people use it: its command, and requests to its front."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

from app.stack.spec import PROJECT_ROOT
from loadtest.cluster.cluster import Cluster
from loadtest.fleet import until

UP_SECONDS = 480.0
FIRST = {"candidate": "alice", "payload": "5 years backend, Go and Python"}


def command(folder: Path, *words: str, port: int = 0) -> subprocess.CompletedProcess[str]:
    """``python -m loadtest.cluster …`` for the cluster in that folder."""
    return subprocess.run(
        (sys.executable, "-m", "loadtest.cluster", *words),
        cwd=PROJECT_ROOT,
        env={**os.environ, "CLUSTER_HOME": str(folder), "PORT": str(port)},
        capture_output=True,
        text=True,
        timeout=UP_SECONDS,
        check=False,
    )


def left_behind() -> dict[str, object]:
    """What a cluster could leave on this machine besides processes and files."""
    rules = subprocess.run(("nft", "list", "ruleset"), capture_output=True, text=True, check=True)
    return {
        "links": sorted(os.listdir("/sys/class/net")),
        "names": sorted(os.listdir("/run/netns")) if Path("/run/netns").exists() else [],
        "rules": rules.stdout,
    }


def call(cluster: Cluster, path: str, body: Any = None) -> tuple[int, Any]:
    """Status and JSON of a request to the front; 0 if it did not answer."""
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(cluster.url + path, data, {"content-type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as response:
            return response.status, json.loads(response.read())
    except urllib.error.HTTPError as error:
        with error:
            return error.code, None
    except OSError:
        return 0, None


def accepted(cluster: Cluster, candidate: str) -> str:
    """The id of an application, once it was accepted; empty if it was not."""
    status, said = call(cluster, "/applications", {**FIRST, "candidate": candidate})
    return said["id"] if status == 202 else ""


def await_score(cluster: Cluster, application: str) -> dict[str, Any]:
    def scored() -> dict[str, Any] | None:
        _, said = call(cluster, f"/applications/{application}")
        return said if said and said["status"] == "scored" else None

    found = until(scored, 90.0, f"a score of {application}")
    assert found is not None
    return found
