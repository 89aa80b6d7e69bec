"""Rounds of kills under a steady load: strike, wait for the recovery, strike again, judge."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

from loadtest.chaos.api import Api
from loadtest.chaos.checker import Report, check, wait_until_settled
from loadtest.chaos.killer import Strike, kill, victims
from loadtest.chaos.stack import Stack
from loadtest.chaos.submitter import ClientLog, Submitter

#: The longest that each step of a recovery may take.
RECOVERY_SECONDS = 60.0
#: What a shorter lease means for every test: lost work comes back while somebody watches.
SETTINGS = {
    "FAIRLINE_SCORE_SECONDS": "0.2",
    "FAIRLINE_POOLS": '{"medium":{"lease_seconds":6}}',
    "FAIRLINE_SERVED_POOLS": "medium",
    "WORKERS_SHORT": "0",
    "WORKERS_LONG": "0",
}


@dataclass(frozen=True, slots=True)
class Recovery:
    """What one strike led to, in seconds after it."""

    strike: Strike
    pid: int
    #: Another process runs in its place.
    replaced: float
    #: A submission made after the strike was accepted …
    accepted: float
    #: … and scored.
    scored: float


@dataclass(slots=True)
class Progress:
    """Where the rounds are, for whoever shows them."""

    submitter: Submitter
    recoveries: list[Recovery] = field(default_factory=list)
    #: What is happening now, in words.
    now: str = "warming up"


Watcher = Callable[[Progress], None]


def nobody(_: Progress) -> None:
    """Shows nothing."""


def run_rounds(
    stack: Stack,
    strikes: Iterable[Strike],
    log_file: Path,
    *,
    role: str = "chaos",
    per_second: float = 20.0,
    settle_seconds: float = 60.0,
    watch: Watcher = nobody,
) -> tuple[list[Recovery], Report]:
    """Strike under load, then wait for the last job and judge."""
    log = ClientLog(log_file)
    submitter = Submitter(stack.port, log, role=role, per_second=per_second)
    progress = Progress(submitter)

    def say(words: str) -> None:
        progress.now = words
        watch(progress)

    try:
        with submitter.running():
            for strike in strikes:
                say(f"strike {strike.number}: {strike.target} in {strike.pause_seconds:.1f} s")
                time.sleep(strike.pause_seconds)
                progress.recoveries.append(strike_once(stack, strike, submitter, say))
        say("waiting for the last jobs")
        with stack.engine() as engine:
            wait_until_settled(engine, settle_seconds)
            stack.wait_ready(RECOVERY_SECONDS)
            report = check(log.read(), role, engine, stack.port)
        say("done")
    finally:
        log.close()
    return progress.recoveries, report


def strike_once(
    stack: Stack, strike: Strike, submitter: Submitter, say: Callable[[str], None]
) -> Recovery:
    """Kill, and wait until another process does the work."""
    count = len(victims(stack, strike.target))
    pid = kill(stack, strike)
    began = time.monotonic()
    say(f"strike {strike.number}: killed {strike.target} (pid {pid})")

    def replaced() -> bool:
        try:
            now = victims(stack, strike.target)
        except (KeyError, OSError):  # between two lives
            return False
        return pid not in now and len(now) >= count

    stack.wait(replaced, f"another {strike.target}", RECOVERY_SECONDS, pause=0.02)
    replaced_after = time.monotonic() - began
    with Api(stack.port) as api:
        promise = None
        while promise is None:
            if time.monotonic() - began > RECOVERY_SECONDS:
                raise AssertionError(f"no 202 since {strike}\n{stack.logs()}")
            promise = submitter.submit(api)
            time.sleep(0 if promise else 0.05)
        accepted_after = time.monotonic() - began
        path = f"/applications/{promise.id}"

        def scored() -> bool:
            answer = api.call("GET", path)
            return answer.status == 200 and answer.document["status"] == "scored"

        stack.wait(scored, f"{promise.id} to be scored after {strike}", RECOVERY_SECONDS)
    scored_after = time.monotonic() - began
    return Recovery(strike, pid, replaced_after, accepted_after, scored_after)
