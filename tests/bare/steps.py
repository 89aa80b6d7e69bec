"""Commands in a tree, one after the other, each shown on the screen and with a log of its own."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from app.stack.screen import Screen
from app.stack.services import tail
from tests.bare.tree import Tree, User


class Failed(Exception):
    """A step did not do what it should; the message says what, and ends with its output."""


class Steps:
    """Runs them; all see the same variables."""

    def __init__(
        self, tree: Tree, logs: Path, screen: Screen, variables: Mapping[str, str] | None = None
    ) -> None:
        self._tree = tree
        self._logs = logs
        self._screen = screen
        self._variables = variables or {}
        self._steps = 0

    def run(self, user: User, name: str, command: str, seconds: float, **more: str) -> str:
        """Run a shell script to its end, which must be a good one; what it printed."""
        log = self._log(user, name)
        words = self._tree.command(user, command)
        seen = self._tree.environment(user, {**self._variables, **more})
        with self._screen.step(f"{user.name}: {name}"), log.open("wb") as output:
            try:
                subprocess.run(
                    words, env=seen, stdout=output, stderr=output, timeout=seconds, check=True
                )
            except subprocess.SubprocessError as error:
                raise Failed(f"{user.name}: {name}: {why(error)}; {end_of(log)}") from error
        return log.read_text(errors="replace")

    def _log(self, user: User, name: str) -> Path:
        self._steps += 1
        return self._logs / f"{self._steps:02}-{user.name}-{re.sub(r'[^A-Za-z]+', '-', name)}.log"


def why(error: subprocess.SubprocessError) -> str:
    """How a command ended, without the command."""
    if isinstance(error, subprocess.CalledProcessError):
        return f"ended with {error.returncode}"
    return "took too long"


def end_of(log: Path) -> str:
    """The last lines of a step's output."""
    return f"the end of {log}:\n{tail(log, 30)}"


def check_machine(command: str) -> str | None:
    """What the command misses here, if something."""
    if os.geteuid():
        return f"{command} makes a Debian tree and mounts in it: run it as root"
    needed = ("mmdebstrap", "unshare", "nsenter", "setpriv")
    missing = [name for name in needed if not shutil.which(name)]
    return (
        f"missing: {', '.join(missing)} (apt-get install mmdebstrap util-linux)"
        if missing
        else None
    )
