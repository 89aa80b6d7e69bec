"""Process identities: pid, start tick and boot id, because pids alone are reused.

Linux only (``/proc``). Another user's process may hide its folder and environment; it then
counts as having none, so it is never taken for ours.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class ProcessIdentity:
    """Identifies one process for good."""

    pid: int
    started_ticks: int
    boot: str


@dataclass(frozen=True, slots=True)
class ProcessStat:
    """The fields of ``/proc/<pid>/stat`` that are used here."""

    parent: int
    session: int
    started_ticks: int


@cache
def boot_id() -> str:
    """Changes with each boot; ticks are counted from there."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def stat_of(pid: int) -> ProcessStat | None:
    """``None`` if there is no such process, or only a zombie of it."""
    try:
        # The name of a command is any bytes, and need not be text.
        text = (PROC / str(pid) / "stat").read_text(errors="replace")
    except OSError:
        return None
    # The command name in parentheses may hold blanks and parentheses itself.
    fields = text.rpartition(")")[2].split()
    if fields[0] in "ZX":
        return None
    return ProcessStat(int(fields[1]), int(fields[3]), int(fields[19]))


def identity_of(pid: int) -> ProcessIdentity | None:
    stat = stat_of(pid)
    return ProcessIdentity(pid, stat.started_ticks, boot_id()) if stat else None


def is_alive(identity: ProcessIdentity) -> bool:
    """Whether that very process, and not a later one with its pid, still runs."""
    return identity_of(identity.pid) == identity


def all_pids() -> Iterator[int]:
    return (int(entry.name) for entry in PROC.iterdir() if entry.name.isdigit())


def cwd_of(pid: int) -> str:
    """Folder the process works in; empty if hidden."""
    with suppress(OSError):
        return str((PROC / str(pid) / "cwd").readlink())
    return ""


def has_environment(pid: int, assignment: str) -> bool:
    """Whether the process was started with exactly this ``NAME=value``."""
    with suppress(OSError):
        return assignment.encode() in (PROC / str(pid) / "environ").read_bytes().split(b"\0")
    return False


def processes_in(folder: Path) -> list[ProcessIdentity]:
    """Processes whose working directory is this folder, also if it was deleted meanwhile."""
    names = (str(folder), f"{folder} (deleted)")
    found = [identity_of(pid) for pid in all_pids() if cwd_of(pid) in names]
    return [identity for identity in found if identity]


def signal_process(identity: ProcessIdentity, number: signal.Signals) -> None:
    """Signal that very process, or nothing."""
    # A pidfd names one process for good, so nothing can slip in between check and signal.
    with suppress(ProcessLookupError):
        handle = os.pidfd_open(identity.pid)
        try:
            if is_alive(identity):
                signal.pidfd_send_signal(handle, number)
        finally:
            os.close(handle)


def wait_for_exit(identities: Iterable[ProcessIdentity], seconds: float) -> list[ProcessIdentity]:
    """Wait until the processes have ended; returns those that have not."""
    deadline = time.monotonic() + seconds
    remaining = [identity for identity in identities if is_alive(identity)]
    while remaining and time.monotonic() < deadline:
        time.sleep(0.02)
        remaining = [identity for identity in remaining if is_alive(identity)]
    return remaining
