"""Reads ``docker-compose.yml`` as Compose does, as far as the file uses it, and the Dockerfile."""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from graphlib import TopologicalSorter
from typing import Any

import yaml

from app.stack.spec import PROJECT_ROOT

COMPOSE_FILE = PROJECT_ROOT / "docker-compose.yml"
DOCKERFILE = PROJECT_ROOT / "Dockerfile"
#: ``$$``, ``${NAME}``, ``${NAME-default}``, ``${NAME:-default}``, ``${NAME:+other}``;
#: one inside another, the inner one first.
VARIABLE = re.compile(r"\$(?:\$|\{(?P<name>\w+)(?:(?P<rule>:?[-+])(?P<word>[^{}]*))?\})")
#: The service that makes the passwords, and the variables of our processes that are files then.
MAKER = "secrets"
IN_FILES = frozenset(
    (
        *("FAIRLINE_DATABASE_URL", "FAIRLINE_OWNER_DATABASE_URL", "FAIRLINE_BROKER_URL"),
        *("FLOWER_BASIC_AUTH", "FLOWER_BROKER_API"),
    )
)
SECONDS = {"s": 1.0, "m": 60.0}


def read_compose(environment: Mapping[str, str]) -> dict[str, Any]:
    """The file with its variables replaced."""
    document: dict[str, Any] = yaml.safe_load(COMPOSE_FILE.read_text())
    document = {key: part for key, part in document.items() if not key.startswith("x-")}
    resolved: dict[str, Any] = interpolate(document, environment)
    return resolved


def own_services(document: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """The services that are processes of Fairline."""
    return {
        name: service
        for name, service in document["services"].items()
        if "build" in service and name != MAKER
    }


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
