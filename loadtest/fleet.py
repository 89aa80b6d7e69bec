"""The processes of a measurement: private services in a temporary home, then whatever is named.

Everything that was started is stopped by its own pid when the ``with`` block ends, whatever
happened inside it. Call from the main thread: children die with the thread that started them.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path

from app.stack.postgres import EmbeddedPostgres
from app.stack.rabbitmq import EmbeddedRabbitMQ
from app.stack.services import Running, running, tail
from app.stack.spawn import Child, spawn
from app.stack.spec import ProcessSpec


class NotReady(RuntimeError):
    """A process did not answer in time; the message ends with the last lines of its log."""


class Fleet:
    """Started processes by name, beside a PostgreSQL and a RabbitMQ of their own."""

    def __init__(
        self,
        home: Path,
        postgres: Running[EmbeddedPostgres],
        rabbitmq: Running[EmbeddedRabbitMQ],
    ) -> None:
        self.home = home
        self.postgres = postgres
        self.rabbitmq = rabbitmq
        self.children: dict[str, Child] = {}
        #: Databases that are there to be copied.
        self.templates: set[str] = set()

    def start(self, name: str, argv: Sequence[str], env: Mapping[str, str]) -> Child:
        """Start a process; its log is in the home."""
        spec = ProcessSpec(name, tuple(argv))
        self.children[name] = spawn(spec, {**clean_environment(), **env}, self.log(name))
        return self.children[name]

    def stop(self, *names: str) -> None:
        """Stop these processes in this order; without a name, all of them, the youngest first."""
        for name in names or tuple(reversed(self.children)):
            child = self.children.pop(name, None)
            if child is not None:
                child.stop()

    def kill(self, *names: str) -> None:
        """End these processes at once: for those whose work nobody needs any more."""
        killed = [self.children.pop(name) for name in names if name in self.children]
        for child in killed:
            child.kill()
        for child in killed:
            child.popen.wait()

    @contextmanager
    def frozen(self, *names: str) -> Iterator[None]:
        """Keep these processes from running; they go on where they were afterwards."""
        frozen = [self.children[name] for name in names]
        for child in frozen:
            child.send(signal.SIGSTOP)
        try:
            yield
        finally:
            for child in frozen:
                child.send(signal.SIGCONT)

    def log(self, name: str) -> Path:
        """Where a process writes."""
        return self.home / "logs" / f"{name}.log"

    def await_answer(self, name: str, url: str, seconds: float = 30.0) -> None:
        """Wait until the URL answers 200."""
        deadline = time.monotonic() + seconds
        while True:
            try:
                with urllib.request.urlopen(url, timeout=2):
                    return
            except (urllib.error.URLError, OSError) as error:
                child = self.children[name]
                if child.poll() is not None or time.monotonic() > deadline:
                    raise NotReady(
                        f"{url}: {error}\n{name} says:\n{tail(self.log(name))}"
                    ) from None
            time.sleep(0.05)

    def pids(self) -> dict[str, list[int]]:
        """The leading processes of every part, by name."""
        return {
            **{name: [child.pid] for name, child in self.children.items()},
            "postgres": [child.pid for child in self.postgres.children],
            "rabbitmq": [child.pid for child in self.rabbitmq.children],
        }


@contextmanager
def fleet(name: str) -> Iterator[Fleet]:
    """Private services, ready; processes are added to them. Ends in good order on SIGTERM too."""
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    home = Path(tempfile.mkdtemp(prefix=f"fairline-{name}-"))
    with ExitStack() as stack:
        stack.callback(shutil.rmtree, home, ignore_errors=True)
        logs = home / "logs"
        postgres = stack.enter_context(running(EmbeddedPostgres(home), logs))
        rabbitmq = stack.enter_context(running(EmbeddedRabbitMQ(home), logs))
        started = Fleet(home, postgres, rabbitmq)
        stack.callback(started.stop)
        yield started


def clean_environment() -> dict[str, str]:
    """The environment without anything that would configure what is measured."""
    return {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("FAIRLINE_", "OTEL_", "CELERY_", "GUNICORN_", "FLASK_"))
    } | {"PYTHONUNBUFFERED": "1"}
