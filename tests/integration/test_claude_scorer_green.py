"""The Claude scorer where it mostly runs: in greenlets that share one thread.

Each test starts a process of its own, because patching the standard library cannot be undone.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest

from tests.fake_claude import FakeClaude

#: What a call may take beyond its limit on a busy machine.
SLACK = 0.7


@pytest.fixture
def fake() -> Iterator[FakeClaude]:
    with FakeClaude() as fake:
        yield fake


GREEN = """
from gevent import monkey
monkey.patch_all()
import json, sys, time
import gevent
from tasks.errors import DependencyFailure
from tasks.scorers import Application
from tasks.scorers.claude import ClaudeScorer

url, key, calls, timeout = sys.argv[1], sys.argv[2], int(sys.argv[3]), float(sys.argv[4])
scorer = ClaudeScorer(model="claude-haiku-5-5", timeout_seconds=timeout, api_key=key, base_url=url)
ticks = 0

def tick():
    global ticks
    while True:
        gevent.sleep(0.01)
        ticks += 1

def call(n):
    began = time.monotonic()
    try:
        scorer.score(Application("Ada", "engineer", {"n": n}))
        outcome = "scored"
    except DependencyFailure:
        outcome = "dependency"
    return outcome, time.monotonic() - began

scorer._client()
ticker = gevent.spawn(tick)
jobs = [gevent.spawn(call, n) for n in range(calls)]
gevent.joinall(jobs, raise_error=True)
outcomes = [job.value for job in jobs]
ticker.kill()
print(json.dumps({
    "outcomes": sorted({outcome for outcome, _ in outcomes}),
    "slowest": max(seconds for _, seconds in outcomes),
    "quickest": min(seconds for _, seconds in outcomes),
    "ticks": ticks,
}))
"""


def in_greenlets(fake: FakeClaude, *, calls: int, timeout: float) -> dict[str, Any]:
    seen: dict[str, Any] = run(GREEN, fake.url, fake.api_key, str(calls), str(timeout))
    return seen


def run(script: str, *arguments: str) -> Any:
    done = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.parametrize("behaviour", ["hang", "hang_after_headers", "drip", "drip_headers"])
def test_under_gevent_the_limit_holds_and_other_greenlets_keep_running(
    fake: FakeClaude, behaviour: str
) -> None:
    fake.behave(behaviour)
    seen = in_greenlets(fake, calls=20, timeout=1.0)
    assert seen["outcomes"] == ["dependency"]
    assert 0.9 < seen["quickest"] <= seen["slowest"] < 1.0 + SLACK
    assert seen["ticks"] > 30


def test_under_gevent_fifty_calls_wait_side_by_side() -> None:
    with FakeClaude(answer_seconds=1.0) as fake:
        seen = in_greenlets(fake, calls=50, timeout=20)
        assert seen["outcomes"] == ["scored"]
        assert seen["slowest"] < 3
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
    (own, own_seconds), (foreign, foreign_seconds) = run(INTERRUPTED)
    assert (own, foreign) == ("DeadlinePassed", "Timeout")
    assert max(own_seconds, foreign_seconds) < 0.2 + SLACK
