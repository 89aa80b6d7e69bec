"""Specification of a process: its command, its environment and how it is stopped."""

from __future__ import annotations

import signal
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

#: The repository: every command of the table runs from here.
PROJECT_ROOT = Path(__file__).resolve().parents[2]


class StackError(RuntimeError):
    """The stack cannot start or be reached; the message says why and what to do."""


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
    #: Sent by the kernel when the supervisor dies, whatever the reason. Nothing follows it.
    death_signal: signal.Signals = signal.SIGKILL
    #: How long a surplus process may take after the first step, to finish what it runs.
    #: 0: as long as the step says.
    drain_seconds: float = 0.0
    #: Sent to a surplus process before the first step.
    drain_signal: signal.Signals | None = None
    #: Called before each start, also before a restart: clears what a crash left.
    before_start: Callable[[], None] = lambda: None
    #: Whether it serves clients now. A process that did not for this long is killed and restarted;
    #: each start without its data doubles the time that the next ones have.
    is_ready: Callable[[], bool] | None = None
    unready_seconds: float = 60.0
    #: Called before a start if earlier ones took twice that long in vain: sets its data aside.
    reset: Callable[[], None] = lambda: None
    #: Whether it gets a variable of the stack's environment; see ``app/stack/inherited.py``.
    inherits: Callable[[str], bool] = lambda name: True
    #: The kind of `app.stack.fork_server` that has its modules imported; ``None``: it is executed.
    forked_from: str | None = None
