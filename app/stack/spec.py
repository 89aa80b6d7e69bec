"""What one process is: its command, its surroundings and how it is asked to stop."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: The repository: every command of the table runs from here.
PROJECT_ROOT = Path(__file__).resolve().parents[2]


@dataclass(frozen=True, slots=True)
class SystemUser:
    """User and group a process runs as, by number: the user need not have a name."""

    uid: int
    gid: int


@dataclass(frozen=True, slots=True)
class StopStep:
    """Send one signal, then wait this long before the next, harsher step."""

    signal: signal.Signals
    seconds: float


POLITE_STOP = (StopStep(signal.SIGTERM, 10.0),)


def nothing() -> None:
    """The hook of a process that needs no preparation."""


@dataclass(frozen=True, slots=True)
class ProcessSpec:
    """One process to keep alive."""

    #: Unique in the stack; also the name of the log file.
    name: str
    argv: tuple[str, ...]
    #: Added to the environment of the stack.
    env: Mapping[str, str] = field(default_factory=dict)
    cwd: Path = PROJECT_ROOT
    #: ``None`` keeps the caller's.
    account: SystemUser | None = None
    #: Tried in order; SIGKILL to the whole process group always follows.
    stop: tuple[StopStep, ...] = POLITE_STOP
    #: How long one that is no longer needed may take after the first step: until what it runs has
    #: ended. 0: as long as the step says.
    patience_seconds: float = 0.0
    #: Sent to it before that first step, so that it knows.
    patience_signal: signal.Signals | None = None
    #: Called before each start, also before a restart: clears what a crash left.
    before_start: Callable[[], None] = nothing
