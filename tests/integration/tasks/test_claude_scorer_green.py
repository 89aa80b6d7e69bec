"""The Claude scorer where it mostly runs: in greenlets that share one thread.

They run in processes of their own, because patching the standard library cannot be undone. One
of them goes through all that a server can do wrong: most of its time is the SDK's import.
"""

from __future__ import annotations

import json
import subprocess
import sys
from contextlib import ExitStack
from typing import Any

import pytest

from loadtest.fakes.claude import FakeClaude
from tests.support.misbehaving_claude import MisbehavingClaude

#: What a call may take beyond its limit on a busy machine.
SLACK = 4.0


#: Servers that never come to an end.
ENDLESS = ("hang", "hang_after_headers", "drip", "drip_headers")


GREEN = """
from gevent import monkey
monkey.patch_all()
import json, sys, time
import gevent
from tasks.errors import DependencyFailure
from tasks.scorers.protocol import ApplicationText
from tasks.scorers.claude import ClaudeScorer

calls, timeout, *servers = int(sys.argv[1]), float(sys.argv[2]), *sys.argv[3:]

def tick(ticks):
    while True:
        gevent.sleep(0.01)
        ticks.append(1)

def call(scorer, n):
    began = time.monotonic()
    try:
        scorer.score(ApplicationText("Ada", "engineer", {"n": n}))
        outcome = "scored"
    except DependencyFailure:
        outcome = "dependency"
    return outcome, time.monotonic() - began

for server in servers:
    url, key = server.split()
    scorer = ClaudeScorer(
        model="claude-haiku-5-5", timeout_seconds=timeout, api_key=key, base_url=url
    )
    scorer._client()
    ticks = []
    ticker = gevent.spawn(tick, ticks)
    jobs = [gevent.spawn(call, scorer, n) for n in range(calls)]
    gevent.joinall(jobs, raise_error=True)
    outcomes = [job.value for job in jobs]
    ticker.kill()
    print(json.dumps({
        "outcomes": sorted({outcome for outcome, _ in outcomes}),
        "slowest": max(seconds for _, seconds in outcomes),
        "quickest": min(seconds for _, seconds in outcomes),
        "ticks": len(ticks),
    }), flush=True)
"""


def in_greenlets(*fakes: FakeClaude, calls: int, timeout: float) -> list[dict[str, Any]]:
    """What was seen of each of the servers, called one after the other."""
    servers = (f"{fake.url} {fake.api_key}" for fake in fakes)
    return run(GREEN, str(calls), str(timeout), *servers)


def run(script: str, *arguments: str) -> list[Any]:
    """The lines that a script has to say."""
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture(scope="module")
def endless() -> dict[str, dict[str, Any]]:
    """Twenty calls with a limit of a second to each of the servers that never end."""
    with ExitStack() as exits:
        fakes = [exits.enter_context(MisbehavingClaude()) for _ in ENDLESS]
        for fake, behaviour in zip(fakes, ENDLESS, strict=True):
            fake.behave(behaviour)
        return dict(zip(ENDLESS, in_greenlets(*fakes, calls=20, timeout=1.0), strict=True))


@pytest.mark.parametrize("behaviour", ENDLESS)
def test_under_gevent_the_limit_holds_and_other_greenlets_keep_running(
    endless: dict[str, dict[str, Any]], behaviour: str
) -> None:
    seen = endless[behaviour]
    assert seen["outcomes"] == ["dependency"]
    assert 0.9 < seen["quickest"] <= seen["slowest"] < 1.0 + SLACK
    # A hundred in a second on idle cores; one or two if a call kept the others from running.
    assert seen["ticks"] > 5


def test_under_gevent_fifty_calls_wait_side_by_side() -> None:
    with FakeClaude(answer_seconds=1.0) as fake:
        [seen] = in_greenlets(fake, calls=50, timeout=20)
        assert seen["outcomes"] == ["scored"]
        assert seen["slowest"] < 15
        assert len(fake.connections) == 50


INTERRUPTED = """
from gevent import monkey
monkey.patch_all()
import json, time
import gevent
from tasks.scorers.deadline import DeadlinePassed, deadline

def waits(limit, outer):
    began = time.monotonic()
    try:
        with gevent.Timeout(outer), deadline(limit):
            gevent.event.Event().wait()
    except (DeadlinePassed, gevent.Timeout) as error:
        return type(error).__name__, time.monotonic() - began

import gevent.event
print(json.dumps([waits(0.2, 5), waits(5, 0.2)]))
"""


def test_under_gevent_a_wait_that_no_socket_timeout_covers_is_interrupted_too() -> None:
    [((own, own_seconds), (foreign, foreign_seconds))] = run(INTERRUPTED)
    assert (own, foreign) == ("DeadlinePassed", "Timeout")
    assert max(own_seconds, foreign_seconds) < 0.2 + SLACK
