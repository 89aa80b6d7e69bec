"""Starting one process of the stack, and ending it with everything it started.

Each process leads its own session: Ctrl-C in the terminal reaches only the supervisor, and the
whole group can be ended at once. If the supervisor dies, the kernel ends each process: one that
only was asked to end would wait for services that are gone.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path

from app.stack.identity import (
    ProcessIdentity,
    all_pids,
    identity_of,
    signal_process,
    stat_of,
    wait_for_exit,
)
from app.stack.spec import ProcessSpec

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


class Forked:
    """A child that this process did not start itself, as much like ``Popen`` as is needed."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        """The exit status once it is gone; its zombie, too."""
        return self.wait(os.WNOHANG)

    def wait(self, flags: int = 0) -> int | None:
        """The same, after waiting for that."""
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, flags)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode


class Child:
    def __init__(self, spec: ProcessSpec, popen: subprocess.Popen[bytes] | Forked) -> None:
        self.spec = spec
        self.popen = popen
        self.pid = popen.pid
        self.started_at = time.monotonic()
        self.identity: ProcessIdentity | None = identity_of(popen.pid)

    def poll(self) -> int | None:
        """The exit status once the process is gone, its process group with it."""
        if self.popen.returncode is not None:
            return self.popen.returncode
        # Look without reaping: as long as the zombie holds the pid, the group number cannot
        # be reused by other processes.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self.pid, flags) is None:
            return None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.popen.poll()

    def send(self, number: signal.Signals) -> None:
        """Signal the process itself, not its children."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Kill the process and its group."""
        if self.poll() is None:
            os.killpg(self.pid, signal.SIGKILL)

    def stop(self) -> int:
        """Go through the stop steps, then kill; blocks until the process is gone."""
        for step in self.spec.stop:
            self.send(step.signal)
            deadline = time.monotonic() + step.seconds
            while time.monotonic() < deadline:
                if (status := self.poll()) is not None:
                    return status
                time.sleep(0.02)
        self.kill()
        while (status := self.poll()) is None:
            time.sleep(0.02)
        return status


def private_file(path: str, flags: int) -> int:
    """Open a file that only its owner may read, if it is created."""
    return os.open(path, flags, 0o600)


#: Forks a process with this environment and log; ``None`` if it has to be executed.
Fork = Callable[[ProcessSpec, Mapping[str, str], Path], Forked | None]


def die_with_parent(death_signal: signal.Signals) -> Callable[[], None]:
    """To be called in a child of this process: the kernel then signals it when this one dies."""
    parent, number = os.getpid(), int(death_signal)

    def ask_kernel() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, number)
        if os.getppid() != parent:
            os._exit(1)  # the parent died between fork and prctl

    return ask_kernel


def spawn(
    spec: ProcessSpec,
    environment: Mapping[str, str],
    log: Path,
    fork: Fork = lambda *_: None,
) -> Child:
    """Start the process with its output appended to `log`.

    Call it from a thread that lives as long as the process should: the kernel's signal on the
    parent's death means the death of the parent *thread*.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    inherited = {name: value for name, value in environment.items() if spec.inherits(name)}
    own = {**inherited, **spec.env}
    if forked := fork(spec, own, log):
        return Child(spec, forked)
    account = spec.account
    with open(log, "ab", opener=private_file) as output:
        popen = subprocess.Popen(
            spec.argv,
            cwd=spec.cwd,
            env=own,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            # Runs after the change of the user, which would clear it.
            preexec_fn=die_with_parent(spec.death_signal),
        )
    return Child(spec, popen)


def adopt_orphans() -> None:
    """Make this process, in place of init, the parent of all processes below it that lose theirs.

    Only for a process that does nothing but supervise: `reap_orphans` and `kill_orphans` treat
    every child as the stack's.
    """
    _libc.prctl(PR_SET_CHILD_SUBREAPER, 1)


def reap_orphans(known: Collection[int]) -> None:
    """Collect the exit status of dead orphans; that of ``known`` children is read elsewhere."""
    flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
    with suppress(ChildProcessError):
        while (dead := os.waitid(os.P_ALL, 0, flags)) and dead.si_pid not in known:
            os.waitpid(dead.si_pid, os.WNOHANG)


def kill_orphans() -> None:
    """Kill every child that is left."""
    stats = [(pid, stat_of(pid)) for pid in all_pids()]
    children = [identity_of(pid) for pid, stat in stats if stat and stat.parent == os.getpid()]
    orphans = [child for child in children if child]
    for orphan in orphans:
        signal_process(orphan, signal.SIGKILL)
    wait_for_exit(orphans, seconds=2.0)
    reap_orphans(known=())
