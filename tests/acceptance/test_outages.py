"""Services that are away, frozen or dead: the front door answers, and the work is done later."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest

from loadtest.chaos.facts import wait_until_settled
from loadtest.figures import family
from tests.acceptance.client import Client, new_role, scale
from tests.support.promises import ClientLog, Promise, Submitter, check

#: Longer than the leader's lease: a scheduler that waited for the broker would lose it.
BROKER_FROZEN_SECONDS = 8.0
#: Until a killed one is back and workers have tried again; its own start takes most of it.
BROKER_SECONDS = 90.0
DATABASE_FROZEN_SECONDS = 6.0
#: The promise of the front door while the broker is away. While others use most of the machine,
#: half of the answers keep it, and none takes as long as the broker is away.
P99_SECONDS, BUSY_SECONDS = 0.5, 3.0
BUSY_PERCENT = 50.0
#: Jobs that run while the broker dies take as long as ever, give or take a busy machine.
RUN_SECONDS, LATE_SECONDS = 2.5, 7.5
#: The promise of the front door while PostgreSQL is away is two seconds; a busy machine may take
#: twice that.
REFUSAL_SECONDS = 4.0


@contextmanager
def frozen(processes: Iterable[psutil.Process]) -> Iterator[None]:
    """Stop them without killing them; they go on after the block."""
    stopped = list(processes)
    for process in stopped:
        process.suspend()
    try:
        yield
    finally:
        for process in stopped:
            process.resume()


@pytest.fixture
def log(tmp_path: Path) -> Iterator[ClientLog]:
    opened = ClientLog(tmp_path / "promises.jsonl")
    yield opened
    opened.close()


def assert_quick(promises: list[Promise], since: float, until: float) -> None:
    """The answers in that time were given without waiting for the broker."""
    seconds = sorted(one.seconds for one in promises if since <= one.accepted_at <= until)
    assert len(seconds) > 20, f"only {len(seconds)} submissions were accepted"
    busy = psutil.cpu_percent() > BUSY_PERCENT  # since the last time it was asked for
    assert seconds[len(seconds) // 2] < P99_SECONDS
    assert seconds[int(len(seconds) * 0.99)] < (BUSY_SECONDS if busy else P99_SECONDS)


def assert_all_done(client: Client, log: ClientLog, role: str) -> None:
    wait_until_settled(client.engine, 80)
    report = check(log.read(), role, client.engine, client.stack.port)
    assert report.ok, f"{report}\n{client.stack.logs()}"


def readiness(client: Client) -> dict[str, bool]:
    """Each check of /readyz."""
    checks = client.api.call("GET", "/readyz").document["checks"]
    return {name: check["ok"] for name, check in checks.items()}


def test_submissions_are_accepted_quickly_while_the_broker_is_frozen(
    client: Client, log: ClientLog
) -> None:
    role = new_role()
    with Submitter(client.stack.port, log, role=role).running() as submitter:
        with frozen(family([client.stack.pid("rabbitmq")])):
            psutil.cpu_percent()
            began = time.time()
            time.sleep(BROKER_FROZEN_SECONDS)
            checks = readiness(client)
            ended = time.time()
        assert checks["scheduler"], "a frozen broker must not freeze the scheduler"
        assert_quick(log.read(), began, ended)
        assert not submitter.refused, f"refused: {submitter.refusals}"
    assert_all_done(client, log, role)


def test_submissions_and_running_jobs_do_not_mind_that_the_broker_is_dead(
    client: Client, log: ClientLog
) -> None:
    role = new_role()
    sleeps = client.submit_sleeps(10, RUN_SECONDS)
    client.wait_running(sleeps, 10)
    with Submitter(client.stack.port, log, role=role).running() as submitter:
        psutil.cpu_percent()
        began, dead = time.time(), client.stack.pid("rabbitmq")
        os.kill(dead, signal.SIGKILL)
        client.stack.wait(
            lambda: client.stack.pids().get("rabbitmq", dead) != dead, "another RabbitMQ", 15
        )
        # Its messages were lost or survived; those of jobs submitted meanwhile were never sent.
        client.wait_scored(client.submit(1, role=new_role()), BROKER_SECONDS)
        rows = client.wait_ended(sleeps)
        assert {(row.attempt, row.crashes) for row in rows} == {(1, 0)}
        longest = max((row.finished_at - row.started_at).total_seconds() for row in rows)
        assert longest < LATE_SECONDS, "a worker that looks for its broker goes on working"
        assert_quick(log.read(), began, time.time())
        assert not submitter.refused, f"refused: {submitter.refusals}"
    assert_all_done(client, log, role)


def test_jobs_wait_for_a_scheduler_that_is_absent(client: Client) -> None:
    scale(client.stack, "scheduler", 0)
    client.stack.wait(lambda: not readiness(client)["scheduler"], "it to be missed", 30)
    ids = client.submit(20, role=new_role())
    sleeps = client.submit_sleeps(20, seconds=0.1)
    assert client.count(sleeps, "queued") == 20, "only a scheduler moves the line"
    scale(client.stack, "scheduler", 1)
    client.wait_scored(ids)
    client.wait_ended(sleeps)


def test_front_door_says_503_while_postgresql_is_frozen_and_recovers_by_itself(
    client: Client, log: ClientLog
) -> None:
    role = new_role()
    before = (client.stack.pids(), client.stack.api_workers())
    with Submitter(client.stack.port, log, role=role).running() as submitter:
        time.sleep(0.5)
        with frozen(family([client.stack.pid("postgres")])):
            thaw = time.monotonic() + DATABASE_FROZEN_SECONDS
            while time.monotonic() < thaw:
                began = time.monotonic()
                answer = client.post(role=role)
                assert time.monotonic() - began < REFUSAL_SECONDS
                assert answer.status == 503, answer
                assert answer.document["code"] == "STATE_STORE_UNAVAILABLE"
                assert int((answer.headers or {})["retry-after"]) >= 1
        client.stack.wait(lambda: client.post(role=role).status == 202, "the next 202", 20)
        client.stack.wait_ready()
        accepted = submitter.accepted
        client.stack.wait(lambda: submitter.accepted > accepted + 20, "the load to go on", 30)
        assert set(submitter.refusals) <= {503}, submitter.refusals
    assert (client.stack.pids(), client.stack.api_workers()) == before, "nobody was replaced"
    assert_all_done(client, log, role)
