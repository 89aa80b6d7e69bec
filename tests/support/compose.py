"""Reads ``docker-compose.yml`` as Compose does, and runs its commands without Docker.

Covers what the file uses: interpolation, settings handed through, commands, start order and
health checks. A service gets the files that the image would hold and no environment but its own.
"""

from __future__ import annotations

import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from graphlib import TopologicalSorter
from pathlib import Path
from signal import SIGTERM
from typing import Any

import yaml

from app.stack.services import tail
from app.stack.spawn import Child, spawn
from app.stack.spec import PROJECT_ROOT, ProcessSpec

COMPOSE_FILE = PROJECT_ROOT / "docker-compose.yml"
DOCKERFILE = PROJECT_ROOT / "Dockerfile"
#: ``$$``, ``${NAME}``, ``${NAME-default}``, ``${NAME:-default}``, ``${NAME:+other}``,
#: ``${NAME:?why}``; one inside another, the inner one first.
VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?:(?P<rule>:?[-?+])(?P<word>[^{}]*))?\})")
SECONDS = {"s": 1.0, "m": 60.0}
#: Nobody who is asked to stop while idle or at a short job needs longer, whatever its grace.
PATIENCE_SECONDS = 30.0


class NotSet(ValueError):
    """A variable that the file requires is missing."""


def read_compose(environment: Mapping[str, str]) -> dict[str, Any]:
    """The file with its variables replaced."""
    document: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text())
    document = {key: part for key, part in document.items() if not key.startswith("x-")}
    resolved: dict[str, Any] = interpolate(document, environment)
    return resolved


def interpolate(node: Any, environment: Mapping[str, str]) -> Any:
    """Replace variables in every string below `node`."""
    match node:
        case dict():
            return {key: interpolate(value, environment) for key, value in node.items()}
        case list():
            return [interpolate(value, environment) for value in node]
        case str():
            while (
                after := VARIABLE.sub(lambda found: substitute(found, environment), node)
            ) != node:
                node = after
            return node
    return node


def substitute(found: re.Match[str], environment: Mapping[str, str]) -> str:
    """What one variable stands for."""
    name, rule, word = found["name"], found["rule"] or "", found["word"] or ""
    if name is None:
        return "$"
    value = environment.get(name)
    if rule.endswith("+"):
        return word if value or (value is not None and rule == "+") else ""
    if value is None or (not value and rule.startswith(":")):
        if rule.endswith("?"):
            raise NotSet(f"{name}: {word}")
        return word
    return value


def start_order(services: Mapping[str, Any]) -> list[str]:
    """The services, each behind those it depends on; fails on a cycle."""
    graph = {name: set(service.get("depends_on", {})) for name, service in services.items()}
    return list(TopologicalSorter(graph).static_order())


def argv_of(command: str | list[str]) -> tuple[str, ...]:
    """A command as the container would execute it: no shell unless it names one."""
    return tuple(shlex.split(command) if isinstance(command, str) else command)


def seconds_of(duration: str) -> float:
    """``80s`` or ``6m`` in seconds."""
    return float(duration[:-1]) * SECONDS[duration[-1]]


def last_stage() -> list[list[str]]:
    """The instructions of the Dockerfile's last stage, split into words."""
    text = DOCKERFILE.read_text().replace("\\\n", " ")
    lines = [line.split() for line in text.splitlines() if line and not line.startswith("#")]
    start = max(number for number, words in enumerate(lines) if words[0] == "FROM")
    return lines[start:]


def copy_image(folder: Path) -> Path:
    """Put the files into `folder` that the Dockerfile puts into the image."""
    folder.mkdir()
    for instruction, *words in last_stage():
        if instruction != "COPY" or words[0].startswith("--from"):
            continue
        *sources, target = words
        for source in sources:
            path = PROJECT_ROOT / source
            if path.is_dir():
                ignore = shutil.ignore_patterns("__pycache__", "*.pyc")
                shutil.copytree(path, folder / target, ignore=ignore)
            else:
                shutil.copy(path, folder / target)
    return folder


@dataclass(slots=True)
class LocalService:
    """A service of the file, run as local processes instead of containers."""

    name: str
    service: Mapping[str, Any]
    #: Replaces what only makes sense between containers: addresses and ports.
    local: Mapping[str, str]
    image: Path
    logs: Path
    children: list[Child] = field(default_factory=list)
    asked: bool = False

    @property
    def environment(self) -> dict[str, str]:
        """What the container would see; settings without a value are not handed through."""
        given = {k: str(v) for k, v in self.service["environment"].items() if v is not None}
        return {
            "PATH": f"{Path(sys.executable).parent}:/usr/local/bin:/usr/bin:/bin",
            "HOME": str(self.logs),
            "PYTHONUNBUFFERED": "1",
            "PYTHONDONTWRITEBYTECODE": "1",
            **given,
            **{key: value for key, value in self.local.items() if key in given},
        }

    @property
    def needs(self) -> set[str]:
        """The services that it waits for."""
        return set(self.service.get("depends_on", {}))

    @property
    def once(self) -> bool:
        """Whether it is a command that ends by itself."""
        return bool(self.service["restart"] == "no")

    @property
    def log(self) -> Path:
        """Where the output of all its processes goes."""
        return self.logs / f"{self.name}.log"

    def start(self) -> None:
        """Start as many processes as the file asks for."""
        for number in range(self.service.get("deploy", {}).get("replicas", 1)):
            spec = ProcessSpec(
                name=f"{self.name}-{number}",
                argv=argv_of(self.service["command"]),
                cwd=self.image,
            )
            self.children.append(spawn(spec, self.environment, self.log))

    def is_satisfied(self) -> bool:
        """What those wait for who depend on it: it is healthy, or done if it runs once."""
        exits = [child.poll() for child in self.children]
        if any(exits) or (not self.once and any(code is not None for code in exits)):
            raise AssertionError(f"{self.name} exited with {exits}:\n{self.end_of_log()}")
        return all(code == 0 for code in exits) if self.once else self.is_healthy()

    def is_healthy(self) -> bool:
        """Run its health check."""
        check = self.service["healthcheck"]
        kind, *command = check["test"]
        assert kind == "CMD"
        try:
            done = subprocess.run(
                command,
                cwd=self.image,
                env=self.environment,
                timeout=seconds_of(check["timeout"]),
                capture_output=True,
                check=False,
            )
        except subprocess.TimeoutExpired:
            return False
        return done.returncode == 0

    def ask_to_stop(self) -> None:
        """Send what ``docker compose stop`` sends, once: a second SIGTERM may mean haste."""
        if not self.asked:
            self.asked = True
            for child in self.children:
                child.send(SIGTERM)

    def stop(self) -> list[int]:
        """Wait for every process to end, kill those that do not in time; their exit codes."""
        self.ask_to_stop()
        grace = seconds_of(self.service.get("stop_grace_period", "10s"))
        deadline = time.monotonic() + min(grace, PATIENCE_SECONDS)
        while any(child.poll() is None for child in self.children):
            if time.monotonic() > deadline:
                for child in self.children:
                    child.kill()
            time.sleep(0.02)
        return [code for child in self.children if (code := child.poll()) is not None]

    def end_of_log(self) -> str:
        """What it said last."""
        return tail(self.log, lines=40)
