"""``up`` and ``down`` as a user runs them, with real services and small programs."""

from __future__ import annotations

import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from app.stack.control import NotRunning, ask
from app.stack.environment import COMMANDS
from app.stack.home import Home
from app.stack.leftovers import find_leftovers
from app.stack.ports import PRIVATE_PORTS, is_taken
from app.stack.postgres import LOGIN, EmbeddedPostgres
from app.stack.spec import PROJECT_ROOT
from models.settings import DatabaseSettings
from models.store.session import execute, open_engine
from tests.support.waiting import wait_for

#: ``up`` with a table of dummies: an API that is always ready and workers that sleep.
DRIVER = """
import sys
from app.stack.__main__ import main
from app.stack import __main__ as command
from app.stack.programs import ProgramTable
from app.stack.spec import ProcessSpec
from app.stack.supervisor import Program

API = '''
import http.server, os
class Ready(http.server.BaseHTTPRequestHandler):
    def do_GET(self): self.send_response(200); self.end_headers()
http.server.HTTPServer(("127.0.0.1", int(os.environ["FAIRLINE_PORT"])), Ready).serve_forever()
'''
WORKER = "import subprocess, time; subprocess.Popen(['sleep', '600']); time.sleep(600)"

def table(options, home):
    def worker(n): return ProcessSpec(f"worker-medium-{n}", (sys.executable, "-c", WORKER))
    def api(_): return ProcessSpec("api", (sys.executable, "-c", (sys.argv[1:] or [API])[0]))
    check = (sys.executable, "-c", "import os; os.environ['FAIRLINE_DATABASE_URL']")
    return ProgramTable(ProcessSpec("check", check), [(Program("api", api, 0), 1)],
                 [(Program("worker-medium", worker, 1, scalable=True), options.workers["medium"])])

command.up.__defaults__ = (table,)
sys.exit(main(["up"]))
"""


class Stack:
    """One stack in a folder of its own."""

    def __init__(self, folder: Path, **variables: str) -> None:
        self.home = Home(folder)
        free = (str(port) for port in PRIVATE_PORTS if not is_taken(port))
        ports = {"PORT": next(free), "FLOWER_PORT": next(free)}
        given = {"FAIRLINE_HOME": str(folder), "BROKER": "filesystem", **ports, **variables}
        kept = {k: v for k, v in os.environ.items() if not k.startswith("FAIRLINE_")}
        self.environment = {**kept, **given}
        self.output = folder.with_suffix(".out")
        self.process: subprocess.Popen[bytes] | None = None

    def up(self, *arguments: str) -> subprocess.Popen[bytes]:
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                (sys.executable, "-c", DRIVER, *arguments),
                cwd=PROJECT_ROOT,
                env=self.environment,
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        return self.process

    def up_and_ready(self) -> subprocess.Popen[bytes]:
        process = self.up()
        wait_for(lambda: "is ready" in self.said() or process.poll() is not None, 60.0)
        assert process.poll() is None, self.said()
        return process

    def said(self) -> str:
        return self.output.read_text()

    def down(self) -> str:
        done = subprocess.run(
            (sys.executable, "-m", "app.stack", "down"),
            cwd=PROJECT_ROOT,
            env=self.environment,
            capture_output=True,
            text=True,
            check=True,
        )
        if self.process:
            self.process.wait(30)
        return done.stdout

    def pids(self) -> dict[str, int]:
        with suppress(NotRunning):
            rows = ask(self.home, {"command": "status"})["processes"]
            return {row["name"]: row["pid"] for row in rows if row["pid"]}
        return {}


@pytest.fixture
def stack(tmp_path: Path) -> Iterator[Stack]:
    one = Stack(tmp_path / "home")
    yield one
    one.down()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signal_stops_everything(stack: Stack, number: signal.Signals) -> None:
    process = stack.up_and_ready()
    assert set(stack.pids()) == {"postgres", "api", "worker-medium-1"}
    process.send_signal(number)
    assert process.wait(30) == 0
    assert find_leftovers(stack.home) == []
    assert stack.down().strip() == "Nothing is running."


def test_down_works_from_another_shell(stack: Stack) -> None:
    process = stack.up_and_ready()
    assert stack.down().splitlines()[-1] == "Stopped."
    assert process.wait(15) == 0
    assert find_leftovers(stack.home) == []


def test_down_says_what_it_waits_for_and_how_long(stack: Stack) -> None:
    stack.environment["FAIRLINE_DRAIN_SECONDS"] = "7"
    stack.up_and_ready()
    pid = stack.pids()["worker-medium-1"]
    postgres = EmbeddedPostgres(stack.home.path)
    url = postgres.url()
    urls = {
        "FAIRLINE_DATABASE_URL": postgres.url(login=LOGIN),
        "FAIRLINE_OWNER_DATABASE_URL": url,
    }
    subprocess.run(
        (COMMANDS / "flask", "--app", "app", "migrate", "--tenant", "demo"),
        cwd=PROJECT_ROOT,
        env={**stack.environment, **urls},
        check=True,
    )
    engine = open_engine(DatabaseSettings(database_url=url))
    worker = f"worker-medium-1@{socket.gethostname()}:abcdef:{pid}"
    execute(
        engine, "INSERT INTO processes (name, kind) VALUES (%(name)s, 'worker')", {"name": worker}
    )
    execute(
        engine,
        "INSERT INTO jobs (id, tenant_id, type, pool, payload, status, worker)"
        " SELECT gen_random_uuid(), id, 'sleep', 'medium', '{}', 'running', %(name)s"
        " FROM tenants, generate_series(1, 2)",
        {"name": worker},
    )
    engine.dispose()
    os.kill(pid, signal.SIGSTOP)  # so that it has to be waited for, ten seconds, and killed
    said = stack.down().splitlines()
    assert "at most 107 s" in said[0] and "up to 7 s to finish" in said[0], said
    lines = [line for line in said if "worker-medium-1" in line]
    pattern = r"  waiting for worker-medium-1, which runs 2 sleep; at most \d s more"
    assert lines and re.fullmatch(pattern, lines[0]), said
    assert said[-1] == "Stopped."


def test_down_clears_what_a_killed_supervisor_left(stack: Stack) -> None:
    process = stack.up_and_ready()
    process.kill()
    process.wait()
    stack.down()
    assert find_leftovers(stack.home) == []


def test_next_up_clears_what_a_killed_supervisor_left(stack: Stack) -> None:
    process = stack.up_and_ready()
    # What a worker started outlives it, stopped or not.
    os.kill(stack.pids()["worker-medium-1"], signal.SIGSTOP)
    process.kill()
    process.wait()
    stack.up_and_ready()
    assert "left behind" in stack.said()


def test_killed_postmaster_is_replaced(stack: Stack) -> None:
    stack.up_and_ready()
    service = EmbeddedPostgres(stack.home.path)
    before = stack.pids()["postgres"]
    os.kill(before, signal.SIGKILL)
    wait_for(lambda: stack.pids().get("postgres", before) != before and service.is_ready(), 5.0)


def test_running_stack_can_be_scaled(stack: Stack) -> None:
    stack.up_and_ready()
    ask(stack.home, {"command": "scale", "name": "worker-medium", "count": 3})
    wait_for(lambda: "worker-medium-3" in stack.pids(), 5.0)
    ask(stack.home, {"command": "scale", "name": "worker-medium", "count": 1})
    wait_for(lambda: set(stack.pids()) == {"postgres", "api", "worker-medium-1"}, 15.0)
    answer = ask(stack.home, {"command": "scale", "name": "postgres", "count": 2})
    assert "cannot be scaled" in answer["error"]


def test_second_start_in_the_same_home_is_refused(stack: Stack, tmp_path: Path) -> None:
    stack.up_and_ready()
    twin = Stack(stack.home.path)
    twin.output = tmp_path / "twin.out"
    assert twin.up().wait(30) == 1
    assert "already running" in twin.said()
    assert "postgres" in stack.pids()


def test_taken_port_is_named_before_anything_starts(stack: Stack, tmp_path: Path) -> None:
    stack.up_and_ready()
    other = Stack(tmp_path / "other", PORT=stack.environment["PORT"])
    assert other.up().wait(30) == 1
    assert f"port {stack.environment['PORT']} is already in use" in other.said()
    assert not (other.home.path / "postgres").exists()


def test_two_stacks_run_side_by_side(stack: Stack, tmp_path: Path) -> None:
    stack.up_and_ready()
    other = Stack(tmp_path / "other")
    try:
        other.up_and_ready()
        other.down()
        assert set(stack.pids()) == {"postgres", "api", "worker-medium-1"}
    finally:
        other.down()


def test_hopeless_start_shows_the_log_of_the_culprit_and_ends(stack: Stack) -> None:
    process = stack.up("raise SystemExit('no way to serve')")
    assert process.wait(60) == 1
    assert "api keeps dying" in stack.said()
    assert "no way to serve" in stack.said()
    assert find_leftovers(stack.home) == []
