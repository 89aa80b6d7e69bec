"""Starts the first processes of a stack by fork, from servers that have imported their modules.

See `app.stack.fork_server`. Later ones are executed, so that they run the code and the packages
which are on disk then. So is a process whose server is gone or does not answer in time. For a
process that adopts orphans: it becomes the parent of what a server forks.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from app.stack.fork_server import MODULES, ROOM
from app.stack.inherited import without_model_keys
from app.stack.spawn import Forked, die_with_parent, private_file
from app.stack.spec import PROJECT_ROOT, ProcessSpec

#: Also while the server imports; what else there is to do is done after each look.
ANSWER_SECONDS = 15.0
LOOK_SECONDS = 0.1


class ForkServers:
    """A server for each kind of process, on behalf of this one."""

    def __init__(
        self, environment: Mapping[str, str], log: Path, report: Callable[[str], None]
    ) -> None:
        self._servers = {kind: _start(kind, environment, log) for kind in MODULES}
        self._log, self._report = log, report
        #: Called again and again while a server does not answer; false: it is waited for no more.
        self.goes_on: Callable[[], bool] = lambda: True

    def fork(self, spec: ProcessSpec, environment: Mapping[str, str], log: Path) -> Forked | None:
        """The process, forked; None if it has to be executed."""
        kind = spec.forked_from
        if kind is None or kind not in self._servers:
            return None
        asked = {
            "argv": spec.argv,
            "env": dict(environment),
            "cwd": str(spec.cwd),
            "log": str(log),
            "death_signal": int(spec.death_signal),
            "parent": os.getpid(),
        }
        server, _ = self._servers[kind]
        try:
            return self._ask(server, json.dumps(asked).encode())
        except (OSError, ValueError):  # it is gone, or too slow: not to be waited for once more
            if self.goes_on():
                self._report(f"{spec.name}: its fork server does not answer; see {self._log}")
            self._close(kind)
            return None

    def close(self) -> None:
        """End the servers; what they have forked stays."""
        for kind in list(self._servers):
            self._close(kind)

    def _ask(self, server: socket.socket, asked: bytes) -> Forked:
        """Have a process forked. Until it is told that it is known it has changed nothing."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            socket.send_fds(server, [b"f"], [theirs.fileno()])
            theirs.close()
            ours.settimeout(ANSWER_SECONDS)
            ours.sendall(asked + b"\n")
            deadline = time.monotonic() + ANSWER_SECONDS
            while not select.select([ours], [], [], LOOK_SECONDS)[0]:
                if time.monotonic() > deadline or not self.goes_on():
                    raise TimeoutError("no answer")
            pid = int(ours.recv(100))
            ours.sendall(b"known\n")
            return Forked(pid)

    def _close(self, kind: str) -> None:
        server, process = self._servers.pop(kind)
        server.close()
        process.kill()
        process.wait()


def _start(
    kind: str, environment: Mapping[str, str], log: Path
) -> tuple[socket.socket, subprocess.Popen[bytes]]:
    ours, theirs = socket.socketpair()
    ours.settimeout(ANSWER_SECONDS)
    with theirs, open(log, "ab", opener=private_file) as output:
        process = subprocess.Popen(
            (sys.executable, "-m", "app.stack.fork_server", kind, ROOM),
            cwd=PROJECT_ROOT,
            env={name: value for name, value in environment.items() if without_model_keys(name)},
            stdin=theirs.fileno(),
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=die_with_parent(signal.SIGKILL),
        )
    return ours, process
