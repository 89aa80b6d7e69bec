"""The product's own commands as subprocesses, for tests that need a whole process."""

from __future__ import annotations

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tests import ROOT

BIN = Path(sys.executable).parent

API = (str(BIN / "gunicorn"), "-c", "gunicorn.conf.py", "app:create_app()")
SCHEDULER = (str(BIN / "flask"), "--app", "app", "scheduler")


def worker(pool: str, slots: int = 10, kind: str = "gevent") -> tuple[str, ...]:
    """The worker command, as the README gives it."""
    return (
        *(str(BIN / "celery"), "-A", "app", "worker", "-P", kind, "-c", str(slots), "-Q", pool),
        *("-n", f"worker-{pool}-{os.getpid()}@%h", "--without-gossip", "--without-mingle"),
    )


@contextmanager
def command(
    argv: tuple[str, ...], env: Mapping[str, str], log: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """A running command; stopped by SIGTERM and, if it must be, by SIGKILL."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            argv, cwd=ROOT, env={**os.environ, **env}, stdout=output, stderr=output
        )
        try:
            yield process
        finally:
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


@contextmanager
def commands(
    argvs: Mapping[str, tuple[str, ...]], env: Mapping[str, str], logs: Path
) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    """Several commands by name, each with a log of its name."""
    logs.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        yield {
            name: stack.enter_context(command(argv, env, logs / f"{name}.log"))
            for name, argv in argvs.items()
        }


def wait_for_answer(url: str, wanted: int = 200, seconds: float = 90) -> None:
    """Until ``url`` answers with the wanted status."""
    deadline = time.monotonic() + seconds
    seen: object = None
    while time.monotonic() < deadline:
        try:
            with urllib.request.urlopen(url, timeout=15) as response:
                seen = response.status
        except urllib.error.HTTPError as error:
            seen = f"{error.code} {error.read()!r}"
            if error.code == wanted:
                return
        except OSError as error:
            seen = error
        if seen == wanted:
            return
        time.sleep(0.1)
    raise AssertionError(f"{url} did not answer {wanted} in {seconds} s: {seen}")
