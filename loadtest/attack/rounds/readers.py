"""Slow readers: they ask for large answers and read nothing."""

from __future__ import annotations

import socket
import time
from contextlib import suppress

from app.console.assets import asset_url
from loadtest.attack.plan import Round, Scale
from loadtest.attack.stage import Stage

#: As few bytes as the kernel keeps for a client.
ROOM = 4_096
#: Requests that each of them sends before it would read.
REQUESTS = 3
ASSET_READERS = 60
EXPORT_READERS = 30


def silent(stage: Stage, scale: Scale, paths: list[str], count: int) -> None:
    """Ask on many connections, read nothing, then look at the beginning of each answer."""
    began = time.monotonic()
    with stage.attacker.held(scale.of(count), room=ROOM) as wires:
        for number, wire in enumerate(wires):
            with suppress(OSError):
                wire.sendall(REQUESTS * request(stage, paths[number % len(paths)]))
        time.sleep(max(0.0, began + scale.seconds - time.monotonic()))
        for wire in wires:
            stage.attacker.note("an answer that is not read", beginning(wire))


def request(stage: Stage, path: str) -> bytes:
    head = f"Host: 127.0.0.1\r\nAuthorization: Bearer {stage.keys.hostile}\r\n"
    return f"GET {path} HTTP/1.1\r\n{head}\r\n".encode()


def beginning(wire: socket.socket) -> bytes:
    with suppress(OSError):
        return wire.recv(ROOM)
    return b""


def assets(stage: Stage, scale: Scale) -> None:
    paths = [asset_url(name) for name in ("plotly.js", "swagger-ui.js", "swagger-ui.css")]
    silent(stage, scale, [*paths, "/openapi.json", "/metrics"], ASSET_READERS)


def exports(stage: Stage, scale: Scale) -> None:
    """Answers that are made for each of them: its own application of a megabyte."""
    own = f"/applications/{stage.large}"
    paths = [f"{own}/export", f"/jobs/{stage.large}", "/jobs?limit=500"]
    silent(stage, scale, paths, EXPORT_READERS)


ROUNDS = (
    Round("assets that are never read", assets),
    Round("exports that are never read", exports),
)
