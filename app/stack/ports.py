"""Free TCP ports on the loopback interface."""

from __future__ import annotations

import errno
import json
import random
import socket
from collections.abc import Sequence
from contextlib import suppress
from itertools import islice
from pathlib import Path

#: Below the range of ports that the kernel gives to outgoing connections, so that none takes
#: the port while its service restarts.
PRIVATE_PORTS = range(20_000, 32_000)


def is_taken(port: int, host: str = "127.0.0.1") -> bool:
    """Whether the port is in use; lingering closed connections do not count.

    Raises `OSError` if nobody could listen there, for another reason.
    """
    with socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise
            return True
    return False


def free_ports(count: int) -> list[int]:
    """Ports that nobody listens on."""
    free = (port for port in random.sample(PRIVATE_PORTS, 1000) if not is_taken(port))
    return list(islice(free, count))


def free_port() -> int:
    """A port that nobody listens on."""
    return free_ports(1)[0]


def keep_ports(names: Sequence[str], file: Path) -> None:
    """Record a free port for each name in `file`; the recorded ones stay while they are free."""
    kept: dict[str, int] = {}
    with suppress(FileNotFoundError, json.JSONDecodeError):  # it is cut off by a full disk
        kept = json.loads(file.read_text())
    if set(kept) != set(names) or any(is_taken(port) for port in kept.values()):
        kept = dict(zip(names, free_ports(len(names)), strict=True))
        file.write_text(json.dumps(kept))
