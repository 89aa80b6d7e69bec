"""A pod of the chart on this machine: its command, environment and probes in namespaces of its own.

As in the pod, nothing can be written but /tmp and /dev/shm, the host name is the pod's, and process
1 is another than the command. The network is the machine's. Needs root.
"""

from __future__ import annotations

import os
import subprocess
import time
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from tests import ROOT
from tests.support.commands import BIN

UNSHARE = ("unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child", "--mount-proc")
START = """
set -e
hostname "$POD"
mount --bind /tmp /tmp
mount --bind "$PWD" "$PWD"
mount -o remount,bind,ro "$PWD"
mount -o remount,bind,ro /
cd "$PWD"
"$@" &
wait $!
"""


def namespaces_allowed() -> bool:
    """Whether pods can be had here: as root, where it may mount."""
    tried = [*UNSHARE, "mount", "-o", "remount,bind,ro", "/"]
    return (
        os.geteuid() == 0 and not subprocess.run(tried, capture_output=True, check=False).returncode
    )


def on_path(argv: Sequence[str]) -> list[str]:
    """A command of the image, by its place here."""
    return [str(BIN / argv[0]), *argv[1:]]


class Pod:
    """A pod that has one container."""

    def __init__(
        self, name: str, container: Mapping[str, Any], environment: Mapping[str, str], logs: Path
    ) -> None:
        self.name = name
        self._container = container
        self._log = logs / f"{name}.log"
        self._env = {"PATH": f"{BIN}:{os.environ['PATH']}", "HOME": "/tmp", **environment}
        with self._log.open("wb") as log:
            self._unshare = subprocess.Popen(
                [*UNSHARE, "sh", "-c", START, "sh", *on_path(container["command"])],
                cwd=ROOT,
                env={**self._env, "POD": name, "PYTHONDONTWRITEBYTECODE": "1"},
                stdout=log,
                stderr=log,
            )

    def log(self) -> str:
        return f"{self.name}: {self._log.read_text()[-3000:]}"

    def has_exited(self) -> bool:
        return self._unshare.poll() is not None

    def exited(self, seconds: float) -> int:
        """Wait for the end of its command; the exit code."""
        try:
            return self._unshare.wait(seconds)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {seconds} s: {self.log()}") from None

    def execute(self, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
        """Run a command in the container, as `kubectl exec` does."""
        first = self._first()
        if first is None:
            return subprocess.CompletedProcess(argv, 1, "", "the container has ended")
        enter = ["nsenter", "--target", str(first.pid), "--mount", "--uts", "--pid"]
        return subprocess.run(
            [*enter, f"--wd={ROOT}", *on_path(argv)],
            env=self._env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )

    def _first(self) -> psutil.Process | None:
        """Process 1, which waits for the command; None if both have ended."""
        while not self.has_exited():
            if children := psutil.Process(self._unshare.pid).children():
                return children[0]
            time.sleep(0.02)
        return None

    def passes(self, kind: str) -> bool:
        """Whether it passes one of its probes now."""
        probe = self._container[kind]
        if "exec" in probe:
            return self.execute(probe["exec"]["command"]).returncode == 0
        port = self._env[{"api": "FAIRLINE_PORT", "flower": "FLOWER_PORT"}[self._container["name"]]]
        try:
            url = f"http://127.0.0.1:{port}{probe['httpGet']['path']}"
            with urllib.request.urlopen(url, timeout=15) as response:
                return bool(response.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    def stop(self) -> None:
        """As Kubernetes does: the preStop hook, then SIGTERM to the command."""
        hook = self._container.get("lifecycle", {}).get("preStop", {})
        if "exec" in hook:
            done = self.execute(hook["exec"]["command"])
            assert done.returncode == 0, done.stderr
        first = self._first()
        assert first is not None, self.log()
        (command,) = first.children()
        command.terminate()

    def kill(self) -> None:
        self._unshare.kill()
        self._unshare.wait()
