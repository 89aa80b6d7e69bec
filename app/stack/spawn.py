"""Starting one process of the stack, and ending it with everything it started.

Each process leads a session of its own: Ctrl-C in the terminal reaches only the supervisor,
and the whole group can be ended at once. If the supervisor is killed, the kernel sends each
process its first stop signal; what outlives that is found by `app.stack.leftovers`.
"""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from app.stack.identity import ProcessIdentity, identity_of
from app.stack.spec import ProcessSpec

PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None, use_errno=True)


class Child:
    """A started process."""

    def __init__(self, spec: ProcessSpec, popen: subprocess.Popen[bytes]) -> None:
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
        # come to mean somebody else's processes.
        flags = os.WEXITED | os.WNOHANG | os.WNOWAIT
        if os.waitid(os.P_PID, self.pid, flags) is None:
            return None
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        return self.popen.poll()

    def send(self, number: signal.Signals) -> None:
        """Signal the process itself; its own children are its business."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End the process and its group at once."""
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


def spawn(spec: ProcessSpec, environment: Mapping[str, str], log: Path) -> Child:
    """Start the process with its output appended to `log`.

    Call it from a thread that lives as long as the process should: the kernel's signal on the
    parent's death means the death of the parent *thread*.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    parent, last_word = os.getpid(), int(spec.stop[0].signal)

    def die_with_parent() -> None:
        _libc.prctl(PR_SET_PDEATHSIG, last_word)
        if os.getppid() != parent:
            os._exit(1)  # the parent died between fork and prctl

    account = spec.account
    with log.open("ab") as output:
        popen = subprocess.Popen(
            spec.argv,
            cwd=spec.cwd,
            env={**environment, **spec.env},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            preexec_fn=die_with_parent,
        )
    return Child(spec, popen)
