"""Slow clients: answers nobody reads, requests byte by byte, streams and waits without end."""

from __future__ import annotations

import time
from functools import partial

from app.console.assets import asset_url
from loadtest.attack.attacker import REFUSED, request
from loadtest.attack.rounds.kinds import Held
from loadtest.attack.stage import Stage

#: As few bytes as the kernel keeps for a client.
ROOM = 4_096
#: Requests that a reader sends before it would read.
REQUESTS = 3
#: Of a body of a megabyte, what is sent at once.
BEGUN_BYTES, LENGTH = 256_000, 1_000_000
ASSETS = [asset_url(name) for name in ("plotly.js", "swagger-ui.js", "swagger-ui.css")]


def own(stage: Stage, *paths: str, times: int = 1, **headers: str) -> list[bytes]:
    """Requests with the key of the hostile tenant, each several times."""
    get = partial(request, "GET", key=stage.keys.hostile, keep=True, headers=headers)
    return [times * get(path) for path in paths]


def assets(stage: Stage) -> list[bytes]:
    return own(stage, *ASSETS, "/openapi.json", "/metrics", times=REQUESTS)


def exports(stage: Stage) -> list[bytes]:
    """Answers that are made for each of them: its own application of a megabyte."""
    large = stage.large
    paths = (f"/applications/{large}/export", f"/jobs/{large}", "/jobs?limit=500")
    return own(stage, *paths, times=REQUESTS)


def heads(stage: Stage) -> list[bytes]:
    [whole] = own(stage, "/jobs")
    return [b"", b"GET /jobs", whole.removesuffix(b"\r\n")]


def bodies(stage: Stage) -> list[bytes]:
    """A quarter of a megabyte at once, the rest byte by byte: with a key, without, in chunks."""
    text = b"[" + b"1," * (BEGUN_BYTES // 2)
    framed = {
        f"Content-Length: {LENGTH}": text,
        "Transfer-Encoding: chunked": b"%x\r\n%b\r\n" % (len(text), text),
    }
    head = "POST /applications HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\n"
    known = f"Authorization: Bearer {stage.keys.hostile}\r\n"
    return [
        f"{head}{key}{framing}\r\n\r\n".encode() + sent
        for key in ("", known, known)
        for framing, sent in framed.items()
    ]


def streams(stage: Stage) -> list[bytes]:
    """Streams of its feed, of a job and of its page; then the victim wants one."""
    return own(stage, "/events", f"/jobs/{later_job(stage)}/events", "/tenant/events?page=/tenant")


def waits(stage: Stage) -> list[bytes]:
    """Requests that wait for the end of a job that does not come."""
    return own(stage, f"/jobs/{later_job(stage)}", Prefer="wait=60")


def later_job(stage: Stage) -> str:
    """A job of its own that runs next year."""
    body = {"type": "echo", "execute_at": f"{time.gmtime().tm_year + 1}-12-01T00:00:00Z"}
    return str(stage.call(stage.keys.hostile, "POST", "/jobs", body).document["id"])


ROUNDS = (
    Held("assets that are never read", 60, assets, room=ROOM),
    Held("exports that are never read", 30, exports, room=ROOM),
    Held("heads byte by byte", 200, heads, more=b"x: y\r\n", allowed=REFUSED),
    Held("bodies byte by byte", 40, bodies, more=b"1\r\n1\r\n", allowed=REFUSED),
    Held("event streams", 600, streams),
    Held("requests that wait", 120, waits),
)
