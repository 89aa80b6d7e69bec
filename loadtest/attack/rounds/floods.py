"""Floods: submissions above the limit, lists without a pause, connections without end."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from functools import partial

from loadtest import closed_loop
from loadtest.attack.plan import Round, Scale
from loadtest.attack.stage import Stage
from loadtest.closed_loop import Load, Request, applications

SUBMITTERS = 24
#: Expensive reads at once.
READERS = 6
#: More than one address may have at one process.
CONNECTIONS = 1_300
#: Jobs of one of its batches.
BATCH = 200
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def flood(stage: Stage, scale: Scale, requests: list[Request], connections: int) -> None:
    """Send requests as fast as they are answered, from a process of its own."""
    headers = {"Authorization": f"Bearer {stage.keys.hostile}"}
    load = Load(
        stage.port,
        connections,
        0.0,
        scale.seconds,
        [replace(one, headers=headers) for one in requests],
        429,
        stage.marker,
    )
    answered = closed_loop.finish(closed_loop.start(load))
    refused = {"429": round(answered.rate * scale.seconds)}
    stage.attacker.count({**answered.unexpected, **refused}, connections)


def submissions(stage: Stage, scale: Scale) -> None:
    jobs = [{"type": "echo", "payload": number} for number in range(BATCH)]
    batch = Request("POST", "/jobs/batch", body=json.dumps({"jobs": jobs}))
    flood(stage, scale, [*applications(100), batch], scale.of(SUBMITTERS))


def reads(stage: Stage, scale: Scale) -> None:
    paths = (
        *("/jobs?limit=500", "/leaderboard?limit=500", "/tenant", "/dead-letters?limit=200"),
        *("/jobs?payload=candidate=nobody", "/tenant/usage", f"/applications/{stage.large}/export"),
    )
    flood(stage, scale, [Request("GET", path) for path in paths], scale.of(READERS))


def connections(stage: Stage, scale: Scale) -> None:
    """Open more than one address may have; those that are held are asked once and kept."""
    attacker = stage.attacker
    began = time.monotonic()
    with attacker.held(scale.of(CONNECTIONS)) as wires:
        for wire in wires:
            received = b""
            with suppress(OSError):
                wire.sendall(HEALTH)
                received = wire.recv(65_536)
            attacker.note("one of many connections", received)
        time.sleep(max(0.0, began + scale.seconds - time.monotonic()))


def churn(stage: Stage, scale: Scale) -> None:
    """A new connection for each request, and some that are dropped in the middle."""
    attacker = stage.attacker

    def drop() -> None:
        with suppress(OSError):
            attacker.connect().close()

    ask = partial(attacker.ask, "GET", "/tenant/usage", key=stage.keys.hostile)
    attacker.repeat([ask, drop], scale.of(8), scale.seconds)


ROUNDS = (
    Round("submissions above the limit", submissions),
    Round("lists and exports without a pause", reads),
    Round("as many connections as it gets", connections),
    Round("a connection for each request", churn),
)
