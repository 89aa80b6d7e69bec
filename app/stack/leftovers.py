"""Finding and ending the processes that a killed supervisor left behind.

A process counts as ours only if one of these holds, so a reused pid is never touched:

* it is exactly a process that was recorded when it was started (pid, start tick and boot);
* it belongs to the session that such a process led and works in the same folder;
* it was started with this stack's id in its environment;
* it works in this stack's PostgreSQL data folder (a backend leaves its session and overwrites
  its environment).
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass

from app.stack.home import Home
from app.stack.identity import (
    ProcessIdentity,
    all_pids,
    boot_id,
    cwd_of,
    has_environment,
    is_alive,
    processes_in,
    signal_process,
    stat_of,
    wait_for_exit,
)
from app.stack.spawn import Child

#: Carries the stack's id in the environment of all its processes.
STACK_VARIABLE = "FAIRLINE_STACK"


@dataclass(frozen=True, slots=True)
class Started(ProcessIdentity):
    """The record of one started process."""

    name: str
    cwd: str

    @classmethod
    def of(cls, child: Child) -> Started | None:
        """``None`` if it was gone before its identity could be read."""
        if child.identity is None:
            return None
        cwd = os.path.realpath(child.spec.cwd)
        return cls(**asdict(child.identity), name=child.spec.name, cwd=cwd)


def note_started(home: Home, started: Sequence[Started | None]) -> None:
    """Replace the records, in one step."""
    draft = home.processes_file.with_suffix(".new")
    draft.write_text(json.dumps([asdict(one) for one in started if one], indent=1))
    draft.replace(home.processes_file)


def noted(home: Home) -> list[Started]:
    """The records, as far as they can be read."""
    try:
        return [Started(**entry) for entry in json.loads(home.processes_file.read_text())]
    except (OSError, ValueError, TypeError):
        return []


def find_leftovers(home: Home) -> list[ProcessIdentity]:
    """Every living process of this stack; only right while no supervisor runs."""
    assignment = f"{STACK_VARIABLE}={home.stack_id()}"  # first: a copied home forgets its notes
    leaders = {note.pid: note for note in noted(home) if note.boot == boot_id()}
    found = set(processes_in(home.path.resolve() / "postgres" / "data"))
    spared = _lineage()
    for pid in all_pids():
        stat = stat_of(pid)
        if stat is None or pid in spared:
            continue
        leader = leaders.get(stat.session)
        if has_environment(pid, assignment) or (leader and _is_of(leader, pid, stat.started_ticks)):
            found.add(ProcessIdentity(pid, stat.started_ticks, boot_id()))
    return sorted(found, key=lambda identity: identity.pid)


def _is_of(leader: Started, pid: int, started_ticks: int) -> bool:
    if pid == leader.pid:
        return started_ticks == leader.started_ticks
    # A later process may lead a session of the same number; the kernel reuses it only when
    # the old session has no member left.
    identity = ProcessIdentity(leader.pid, leader.started_ticks, leader.boot)
    same_session = stat_of(leader.pid) is None or is_alive(identity)
    return same_session and started_ticks >= leader.started_ticks and cwd_of(pid) == leader.cwd


def _lineage() -> set[int]:
    """This process and its ancestors: a stack may well be stopped from inside."""
    lineage, pid = set(), os.getpid()
    while pid and (stat := stat_of(pid)):
        lineage.add(pid)
        pid = stat.parent
    return lineage


def clear_leftovers(home: Home, grace_seconds: float = 5.0) -> int:
    """End them all; returns how many there were. PostgreSQL gets the time to close its files."""
    leftovers = find_leftovers(home)
    data = str(home.path.resolve() / "postgres" / "data")
    for leftover in leftovers:
        # SIGTERM would make PostgreSQL wait for its clients.
        polite = signal.SIGINT if cwd_of(leftover.pid) == data else signal.SIGTERM
        signal_process(leftover, polite)
    for stubborn in wait_for_exit(leftovers, grace_seconds):
        signal_process(stubborn, signal.SIGKILL)
    # Again: a process may have been started while the first ones ended.
    late = find_leftovers(home)
    for one in late:
        signal_process(one, signal.SIGKILL)
    wait_for_exit([*leftovers, *late], seconds=5.0)
    with suppress(OSError):  # a full disk; the records of dead processes do no harm
        note_started(home, [])
    return len({*leftovers, *late})
