"""README and docs, typed: each command, as it stands there, prints what is shown under it.

Other people's jobs would change ranks and waits: these are the first tests of the shared stack.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import pytest

from app.stack.environment import COMMANDS
from app.stack.ports import free_ports
from loadtest.chaos.stack import MEDIUM_ONLY, Stack, embedded_stack
from tests import ROOT
from tests.acceptance.client import Client
from tests.support.documents import Example, blocks, differences, examples, script, section
from tests.support.run_elsewhere import is_run_elsewhere

README = (ROOT / "README.md").read_text()
CLAUDE = "Scoring with Claude"
#: All of a page, typed and answered.
PAGE_SECONDS = 300.0


def typed(page: str, text: str) -> list[Example]:
    """The commands of a text that nothing else runs."""
    return [
        one
        for block in blocks(page, text)
        if block.language == "console"
        for one in examples(block)
        if not is_run_elsewhere(page, one)
    ]


def type_all(wanted: Sequence[Example], stack: Stack, replaced: Mapping[str, str]) -> list[str]:
    """Run commands as somebody would whose shell is in the repository."""
    ports = {
        "localhost:8000": f"localhost:{stack.port}",
        "localhost:5555": f"localhost:{stack.flower_port}",
    }
    shell = {name: value for name, value in stack.environment.items() if name != "PORT"}
    done = subprocess.run(
        ("bash", "-c", script(wanted, {**ports, **replaced})),
        cwd=ROOT,
        env=shell,
        capture_output=True,
        text=True,
        timeout=PAGE_SECONDS,
        check=False,
    )
    found = differences(wanted, done.stdout)
    return found or ([f"ended with {done.returncode}: {done.stdout}"] if done.returncode else [])


@pytest.mark.parametrize("page", ["README.md", "docs/api.md"])
def test_every_command_prints_what_is_shown(platform: Client, page: str) -> None:
    text = (ROOT / page).read_text()
    wanted = typed(page, text.replace(section(text, CLAUDE), "") if page == "README.md" else text)
    assert wanted, "a page without a command"
    try:
        found = type_all(wanted, platform.stack, {})
    finally:
        clean_up(platform)
    assert not found, "\n\n".join(found)


def clean_up(platform: Client) -> None:
    """Leave nothing that other tests would wait for."""
    for kind, key in (("jobs?status=queued&limit=500", "jobs"), ("schedules", "schedules")):
        for one in platform.api.call("GET", f"/{kind}").document[key]:
            platform.api.call("DELETE", f"/{key}/{one['id']}")


def test_every_address_in_the_readme_answers(platform: Client) -> None:
    addresses = set(re.findall(r"http://localhost:(\d+)([\w/.-]*)", README))
    assert len(addresses) >= 3
    ports = {"8000": platform.stack.port, "5555": platform.stack.flower_port}
    for port, path in addresses:
        with urllib.request.urlopen(f"http://127.0.0.1:{ports[port]}{path}", timeout=20) as answer:
            assert answer.status == 200


@contextmanager
def running(command: str) -> Iterator[str]:
    """A command that runs in a shell of its own; the first line that it prints."""
    words = (COMMANDS / "python", *shlex.split(command, comments=True)[1:])
    with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield process.stdout.readline()
        finally:
            process.terminate()


def test_the_local_claude_server_does_what_the_readme_shows() -> None:
    server, up, *rest = typed("README.md", section(README, CLAUDE))
    [port] = free_ports(1)
    with running(server.command.replace("9099", str(port))) as printed:
        (shown,) = server.shown
        assert printed.replace(str(port), "9099").strip() == shown
        *given, make, target = shlex.split(up.command.replace("9099", str(port)), comments=True)
        assert (make, target) == ("make", "up")
        variables = dict(one.split("=", 1) for one in given)
        settings = {**MEDIUM_ONLY, "BROKER": "filesystem", "API_WORKERS": "1", **variables}
        with embedded_stack(**settings) as stack:
            found = type_all(rest, stack, {"9099": str(port)})
    assert not found, "\n\n".join(found)
