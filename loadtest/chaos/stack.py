"""A stack as a user starts it (``python -m app.stack up``) in a temporary folder, by process."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path

import psutil
from sqlalchemy import Engine

from app.stack.control import NotRunning, ask
from app.stack.home import Home
from app.stack.ports import free_ports
from app.stack.postgres import EmbeddedPostgres
from app.stack.services import tail
from app.stack.spec import PROJECT_ROOT
from loadtest.chaos.client import Api
from loadtest.chaos.disk import may_mount, own_disk
from loadtest.figures import family
from loadtest.fleet import clean_environment, database, until

#: One pool, and a lease short enough that lost work is soon run again.
MEDIUM_ONLY = {
    "FAIRLINE_SCORE_SECONDS": "0.2",
    "FAIRLINE_POOLS": '{"medium":{"lease_seconds":6}}',
    "FAIRLINE_SERVED_POOLS": "medium",
    "WORKERS_SHORT": "0",
    "WORKERS_LONG": "0",
}
#: Two of everything that can be had twice, and short leases everywhere.
EVERY_POOL = {
    "FAIRLINE_SCORE_SECONDS": "1",
    "FAIRLINE_POOLS": (
        '{"short":{"lease_seconds":6},"medium":{"lease_seconds":6},"long":{"lease_seconds":9}}'
    ),
    "FAIRLINE_JOB_MODULES": "loadtest.chaos.witness",
    # To the platform, killed workers look like crashes of the jobs they run: after a while the
    # tenant would be throttled to one job at a time.
    "FAIRLINE_THROTTLE_CRASHES": "1000000",
    "WORKERS_SHORT": "2",
    "WORKERS_MEDIUM": "2",
    "WORKERS_LONG": "2",
    "API_WORKERS": "2",
    "SCHEDULERS": "2",
}


class StackFailed(AssertionError):
    """The stack did not get ready in time; the message ends with its logs."""


class Stack:
    def __init__(self, folder: Path, **variables: str) -> None:
        """``variables`` go into the environment of ``up`` as they are."""
        self.home = Home(folder)
        self.port, self.flower_port = free_ports(2)
        self.environment = {
            **clean_environment(),
            "FAIRLINE_HOME": str(folder),
            "PORT": str(self.port),
            "FLOWER_PORT": str(self.flower_port),
            **variables,
        }
        self.output = folder.with_suffix(".out")
        self.process: subprocess.Popen[bytes] | None = None
        #: Seconds that its last start took.
        self.took = 0.0

    def up(self, seconds: float = 90.0) -> float:
        """Start it and wait until it is ready; how long that took."""
        with self.output.open("wb") as output:
            self.process = subprocess.Popen(
                (sys.executable, "-m", "app.stack", "up"),
                cwd=PROJECT_ROOT,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        process = self.process
        self.took = self.wait(
            lambda: "is ready" in self.printed() or process.poll() is not None, "the stack", seconds
        )
        if process.poll() is not None:
            raise StackFailed(f"the stack ended while it started:\n{self.printed()}")
        return self.took

    def down(self) -> str:
        """Stop it, as ``make down`` does; the output of that."""
        printed = self.command("down").stdout
        if self.process is not None:
            self.process.wait(30)
        return printed

    def command(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """``python -m app.stack …`` in the environment of this stack."""
        return self.run(sys.executable, "-m", "app.stack", *arguments)

    def run(self, *argv: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """Any command in the environment of this stack."""
        return subprocess.run(
            argv,
            cwd=PROJECT_ROOT,
            env={**self.environment, **variables},
            capture_output=True,
            text=True,
            timeout=150,
            check=True,
        )

    def printed(self) -> str:
        return self.output.read_text(errors="replace") if self.output.exists() else ""

    def pids(self) -> dict[str, int]:
        """The running process of each name."""
        with suppress(NotRunning):
            rows = ask(self.home, {"command": "status"})["processes"]
            return {row["name"]: row["pid"] for row in rows if row["pid"]}
        return {}

    def pid(self, name: str) -> int:
        return self.pids()[name]

    def api_workers(self) -> list[int]:
        """The gunicorn workers of the API, in the order of their start."""
        return sorted(child.pid for child in psutil.Process(self.pid("api")).children())

    def wait_ready(self, seconds: float = 60.0) -> float:
        """Wait until a submitted job would be accepted and run; how long that took."""
        with Api(self.port) as api:
            return self.wait(lambda: api.call("GET", "/readyz").status == 200, "/readyz", seconds)

    def wait(
        self, condition: Callable[[], bool], what: str, seconds: float, pause: float = 0.05
    ) -> float:
        """Wait for a condition; how long it took. After a timeout, an error with all logs' ends."""
        started = time.monotonic()
        if not until(condition, seconds, pause=pause):
            raise StackFailed(f"waited {seconds:.0f} s for {what}\n{self.logs()}")
        return time.monotonic() - started

    def logs(self, lines: int = 12) -> str:
        paths = [self.output, *sorted((self.home.path / "logs").glob("*.log"))]
        return "\n".join(f"== {path.name}\n{tail(path, lines)}" for path in paths)

    def engine(self, statement_seconds: float = 5.0) -> AbstractContextManager[Engine]:
        """Its database, by the product's own engine."""
        return database(EmbeddedPostgres(self.home.path).url(), statement_seconds)

    def destroy(self) -> None:
        """Stop whatever still runs, frozen or not, and remove the files."""
        for process in family(list(self.pids().values())):
            with suppress(psutil.Error):
                process.send_signal(signal.SIGCONT)
        try:
            self.down()
        finally:
            if self.process is not None and self.process.poll() is None:
                self.process.kill()
                self.process.wait()
                self.command("down")
            shutil.rmtree(self.home.path, ignore_errors=True)
            self.output.unlink(missing_ok=True)


@contextmanager
def embedded_stack(disk: bool = False, /, **variables: str) -> Iterator[Stack]:
    """A stack in a temporary folder, up and ready; removed afterwards, whatever happens.

    ``disk``: the folder is a file system of its own, where that is permitted.
    """
    folder = Path(tempfile.mkdtemp(prefix="fairline-chaos-"))
    stack = Stack(folder, **variables)
    with own_disk(folder) if disk and may_mount() else nullcontext():
        yield from _running(stack)


def _running(stack: Stack) -> Iterator[Stack]:
    try:
        stack.up()
        yield stack
    finally:
        stack.destroy()
