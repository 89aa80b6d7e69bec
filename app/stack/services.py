"""Embedded services: their protocol, and running one alone, as the tests do.

Only the supervisor, not `running`, replaces a process that dies.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Generic, Protocol, TypeVar

from app.stack.spawn import Child, spawn
from app.stack.spec import ProcessSpec, StackError


class Service(Protocol):
    """A service that the stack runs itself."""

    name: str

    def prepare(self) -> None:
        """Create what has to exist before the first start."""

    def processes(self) -> Sequence[ProcessSpec]:
        """Its processes, in the order in which they start."""

    def is_ready(self) -> bool:
        """Whether it serves clients at this moment."""


S = TypeVar("S", bound=Service)


class Running(Generic[S]):
    """A service with its processes, started and stopped by the caller."""

    def __init__(self, service: S, logs: Path) -> None:
        self.service = service
        self.children: list[Child] = []
        self._logs = logs

    def log(self, spec: ProcessSpec) -> Path:
        return self._logs / f"{spec.name}.log"

    def start(self, seconds: float = 60.0) -> None:
        """Start every process and wait until the service is ready."""
        self.begin()
        self.await_ready(seconds)

    def begin(self) -> None:
        """Start every process."""
        for spec in self.service.processes():
            spec.before_start()
            self.children.append(spawn(spec, os.environ, self.log(spec)))

    def await_ready(self, seconds: float = 60.0) -> None:
        """Wait until the service is ready."""
        deadline = time.monotonic() + seconds
        while not self.service.is_ready():
            dead = [child.spec for child in self.children if child.poll() is not None]
            if dead or time.monotonic() > deadline:
                culprit = dead[0] if dead else self.children[-1].spec
                self.stop()
                raise StackError(f"{culprit.name} did not start:\n{tail(self.log(culprit))}")
            time.sleep(0.05)

    def stop(self) -> None:
        for child in reversed(self.children):
            child.stop()
        self.children.clear()

    def kill(self) -> None:
        """Kill every process, as a crash would; `start` brings the service back."""
        for child in reversed(self.children):
            child.kill()
            child.popen.wait()
        self.children.clear()


@contextmanager
def running(service: S, logs: Path, seconds: float = 120.0) -> Iterator[Running[S]]:
    """The service, ready to be used inside the ``with`` block and stopped after it."""
    service.prepare()
    server = Running(service, logs)
    server.start(seconds)
    try:
        yield server
    finally:
        server.stop()


def tail(log: Path, lines: int = 15) -> str:
    if not log.exists():
        return "(no output)"
    with log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - 16_384))
        text = file.read().decode(errors="replace")
    return "\n".join(text.splitlines()[-lines:]) or "(no output)"
