"""Floods: submissions above the limit, lists without a pause, connections without end."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from loadtest.attack.attacker import request
from loadtest.attack.rounds.kinds import Held, Repeated
from loadtest.attack.stage import Stage
from loadtest.closed_loop import applications

Calls = list[Callable[[], object]]
#: More than a process takes while it has others to serve; one address may have 1,000 at each.
CONNECTIONS = 1_300
#: Per second: ten times what a tenant may. How many an API can refuse is `loadtest.flood`.
SUBMISSIONS = 1_000
#: Jobs of one of its batches.
BATCH = 200
#: Requests that are sent at once on a connection.
AT_ONCE = 10
PIPELINED = 2_000
HEALTH = b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"


def together(requests: list[bytes], stage: Stage) -> Calls:
    """A few requests at a time on one connection."""
    send = partial(stage.attacker.exchange, "a flood")
    parts = range(0, len(requests), AT_ONCE)
    return [partial(send, b"".join(requests[at : at + AT_ONCE])) for at in parts]


def submissions(stage: Stage) -> Calls:
    post = partial(request, "POST", key=stage.keys.hostile, keep=True)
    jobs = [{"type": "echo", "payload": number} for number in range(BATCH)]
    batch = post("/jobs/batch", body=json.dumps({"jobs": jobs}).encode())
    single = [post(one.path, body=one.body.encode()) for one in applications(199)]
    return together([batch, *single], stage)


def reads(stage: Stage) -> Calls:
    paths = (
        *("/jobs?limit=500", "/leaderboard?limit=500", "/tenant", "/dead-letters?limit=200"),
        *("/jobs?payload=candidate=nobody", "/tenant/usage", f"/applications/{stage.large}/export"),
    )
    get = partial(request, "GET", key=stage.keys.hostile, keep=True)
    return together([get(path) for path in paths], stage)


def churn(stage: Stage) -> Calls:
    """A new connection for each request, and some that are dropped in the middle."""

    def drop() -> None:
        with suppress(OSError):
            stage.attacker.connect().close()

    return [partial(stage.attacker.ask, "GET", "/tenant/usage", key=stage.keys.hostile), drop]


def pipelines(stage: Stage) -> Calls:
    """Thousands of requests for what the victim has, on each connection."""
    path = f"/jobs/{stage.ids['job']}"
    one = request("GET", path, key=stage.keys.hostile, keep=True)
    return [partial(stage.attacker.exchange, "requests at once", one * PIPELINED, (404, 429))]


ROUNDS = (
    Repeated("submissions above the limit", submissions, 24, SUBMISSIONS / AT_ONCE),
    Repeated("lists and exports without a pause", reads),
    Held("1,300 connections", CONNECTIONS, lambda _: [HEALTH]),
    Repeated("a connection for each request", churn, clients=8),
    Repeated("thousands of requests at once", pipelines, clients=8),
)
