"""Commands of cells, keys and tenants typed by an operator, in the process of the test."""

from __future__ import annotations

from collections.abc import Callable

from click.testing import CliRunner, Result

from app.cli.cells import cells as cells_group
from app.cli.keys import keys as keys_group
from app.cli.tenants import tenants as tenants_group

#: Types a line; see the fixture ``type_line``.
Type = Callable[[str], Result]
SECRET = "hunter2"
BROKER = f"amqp://fairline:{SECRET}@mq1:5672//"
GROUPS = {"cells": cells_group, "keys": keys_group, "tenants": tenants_group}


def run(line: str) -> Result:
    """Run a command of the groups."""
    group, *arguments = line.split()
    return CliRunner().invoke(GROUPS[group], arguments)


def add(type_line: Type, name: str, url: str, more: str = "") -> Result:
    return type_line(f"cells add {name} --database-url {url} --broker-url {BROKER} {more}")


def add_two(type_line: Type, urls: list[str]) -> None:
    for name, url in zip(("cell-1", "cell-2"), urls, strict=False):
        assert add(type_line, name, url).exit_code == 0
