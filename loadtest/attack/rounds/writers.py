"""Slow writers: heads and bodies that arrive byte by byte."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from loadtest.attack.attacker import REFUSED
from loadtest.attack.plan import Round, Scale
from loadtest.attack.stage import Stage

HEAD_WRITERS = 200
BODY_WRITERS = 40
#: Between two bytes of a connection.
PAUSE_SECONDS = 0.25
#: Of a body of a megabyte, what is sent at once.
BEGUN_BYTES = 256_000
LENGTH = 1_000_000


def trickle(
    stage: Stage, scale: Scale, count: int, begun: Callable[[int], bytes], more: bytes
) -> None:
    """Begin a request on every connection and add a few bytes to each again and again."""
    until = time.monotonic() + scale.seconds
    with stage.attacker.held(scale.of(count)) as wires:
        for number, wire in enumerate(wires):
            wire.settimeout(0.5)
            with suppress(OSError):
                wire.sendall(begun(number))
        while time.monotonic() < until:
            for wire in wires:
                with suppress(OSError):
                    wire.sendall(more)
            time.sleep(PAUSE_SECONDS)
        for wire in wires:
            received = b""
            with suppress(OSError):
                wire.settimeout(0.01)
                received = wire.recv(65_536)
            stage.attacker.note("a request that trickles in", received, REFUSED)


def heads(stage: Stage, scale: Scale) -> None:
    key = f"Authorization: Bearer {stage.keys.hostile}\r\n".encode()
    starts = (b"", b"GET /jobs", b"GET /jobs HTTP/1.1\r\nHost: a\r\n" + key)
    trickle(stage, scale, HEAD_WRITERS, lambda number: starts[number % 3], b"x: y\r\n")


def bodies(stage: Stage, scale: Scale) -> None:
    """A quarter of a megabyte at once, the rest byte by byte: with a key, without, in chunks."""
    known = f"Authorization: Bearer {stage.keys.hostile}\r\n"
    framings = (f"Content-Length: {LENGTH}\r\n", "Transfer-Encoding: chunked\r\n")

    def begun(number: int) -> bytes:
        key = known if number % 4 else ""
        framing = framings[number % 2]
        head = f"POST /applications HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n{key}"
        text = b"[" + b"1," * (BEGUN_BYTES // 2)
        if number % 2:
            text = b"%x\r\n%b\r\n" % (len(text), text)
        return f"{head}{framing}\r\n".encode() + text

    trickle(stage, scale, BODY_WRITERS, begun, b"1\r\n1\r\n")


ROUNDS = (
    Round("heads byte by byte", heads),
    Round("bodies byte by byte", bodies),
)
