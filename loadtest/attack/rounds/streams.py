"""Event streams and requests that wait: as many as it gets."""

from __future__ import annotations

import time
from contextlib import suppress

from loadtest.attack.plan import Round, Scale
from loadtest.attack.stage import Stage

STREAMS = 600
WAITERS = 120


def streams(stage: Stage, scale: Scale) -> None:
    """Streams of its feed, of a job and of its page; then the victim wants one."""
    job = later_job(stage)
    paths = ("/events", f"/jobs/{job}/events", "/tenant/events?page=/tenant")
    hold(stage, scale, [request(stage, path) for path in paths], STREAMS)


def waiters(stage: Stage, scale: Scale) -> None:
    """Requests that wait for the end of a job that does not come."""
    sent = request(stage, f"/jobs/{later_job(stage)}", "Prefer: wait=60\r\n")
    hold(stage, scale, [sent], WAITERS)


def hold(stage: Stage, scale: Scale, requests: list[bytes], count: int) -> None:
    began = time.monotonic()
    with stage.attacker.held(scale.of(count)) as wires:
        for number, wire in enumerate(wires):
            with suppress(OSError):
                wire.sendall(requests[number % len(requests)])
        time.sleep(max(1.0, began + scale.seconds - time.monotonic()))
        stage.check_victim_stream()
        for wire in wires:
            received = b""
            with suppress(OSError):
                wire.settimeout(0.01)
                received = wire.recv(65_536)
            stage.attacker.note("a stream", received)


def request(stage: Stage, path: str, more: str = "") -> bytes:
    key = f"Host: a\r\nAuthorization: Bearer {stage.keys.hostile}\r\n"
    return f"GET {path} HTTP/1.1\r\n{key}{more}\r\n".encode()


def later_job(stage: Stage) -> str:
    """A job of its own that runs next year."""
    body = {"type": "echo", "execute_at": f"{time.gmtime().tm_year + 1}-12-01T00:00:00Z"}
    return str(stage.call(stage.keys.hostile, "POST", "/jobs", body)["id"])


ROUNDS = (
    Round("event streams", streams),
    Round("requests that wait", waiters),
)
