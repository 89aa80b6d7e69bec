"""Starts the first processes of a stack by fork, from servers that have imported their modules.

See `app.stack.fork_server`. Later ones are executed, so that they run the code and the packages
which are on disk then. So is a process whose server is gone or does not answer in time. For a
process that adopts orphans: it becomes the parent of what a server forks.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from app.stack.fork_server import MODULES, ROOM
from app.stack.inherited import without_model_keys
from app.stack.spawn import Forked, die_with_parent, private_file
from app.stack.spec import PROJECT_ROOT, ProcessSpec

#: Also while the server imports.
ANSWER_SECONDS = 15.0


class ForkServers:
    """A server for each kind of process, on behalf of this one."""

    def __init__(self, environment: Mapping[str, str], log: Path) -> None:
        self._servers = {kind: _start(kind, environment, log) for kind in MODULES}

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
            return _ask(server, json.dumps(asked).encode())
        except (OSError, ValueError):  # it is gone, or too slow: not to be waited for once more
            self._close(kind)
            return None

    def close(self) -> None:
        """End the servers; what they have forked stays."""
        for kind in list(self._servers):
            self._close(kind)

    def _close(self, kind: str) -> None:
        server, process = self._servers.pop(kind)
        server.close()
        process.kill()
        process.wait()


def _ask(server: socket.socket, asked: bytes) -> Forked:
    """Have a process forked. Until it is told that it is known it has changed nothing."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(ANSWER_SECONDS)
        socket.send_fds(server, [b"f"], [theirs.fileno()])
        theirs.close()
        ours.sendall(asked + b"\n")
        with ours.makefile() as answer:
            pid = int(answer.readline())
        ours.sendall(b"known\n")
        return Forked(pid)


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
