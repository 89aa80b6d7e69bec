"""Probes read database URLs as the processes do, and their messages show no password."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

import pytest
from psycopg2.extensions import make_dsn, parse_dsn
from sqlalchemy import make_url

from models.alive import connection_of
from models.database_url import connect_arguments, normal_url
from tests import ROOT

START = "postgresql+psycopg2://"
URLS = [
    *("me@a/db", "me:pass@a:5432/db", "a.b-c:1/db", "me:pass@a:1,b:2/db", "me@a,b/db"),
    *("me:p/ss#x@a/db", "me:p%ss@a/db", "me:p%40ss@a/db", "me:p?ss@a:1,b:2/db", "me:1/2@a:3/db"),
    *("me@/db?host=a:1&host=b:2", "me@/db?host=/run/one,/run/two", "me@[::1]:3,[::2]/db"),
]


def read(arguments: dict[str, Any]) -> dict[str, Any]:
    """As libpq has it; the processes ask one server after the other for this role."""
    found = parse_dsn(make_dsn(**arguments))
    found.pop("connect_timeout", None)
    if "," not in found["host"]:
        found.pop("target_session_attrs", None)
    return {name: value.strip(",") for name, value in found.items() if value.strip(",")}


@pytest.mark.parametrize("rest", URLS)
def test_probes_ask_the_servers_that_processes_use(rest: str) -> None:
    expected = connect_arguments(make_url(normal_url(START + rest)))
    assert read(connection_of(START + rest)) == read(expected)


@pytest.mark.parametrize("rest", ["me:SECRET%zz@{}/d", "me:SECRET/1#x@{}/d", "me:SECRET@{}:x/d"])
def test_messages_show_no_password(rest: str) -> None:
    done = subprocess.run(
        (sys.executable, "-m", "models.alive", "worker", "medium"),
        cwd=ROOT,
        env={**os.environ, "FAIRLINE_DATABASE_URL": START + rest.format("127.0.0.1:1")},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "no worker reports from here" in done.stderr
    assert "SECRET" not in done.stderr and "Traceback" not in done.stderr
