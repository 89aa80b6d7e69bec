"""The leader is killed, frozen or gone: a standby takes over, and without one the API relieves.

The waits of a minute are shortened by setting the clocks in the rows back.
"""

from __future__ import annotations

import os
import signal
from datetime import UTC, datetime, timedelta

import pytest

from tests.acceptance.client import Client, scale

pytestmark = pytest.mark.long

#: The promise of a hot standby.
TAKEOVER_SECONDS = 10.0


def leader(client: Client) -> tuple[int, int]:
    """Process and epoch of whoever leads."""
    (row,) = client.rows("SELECT holder, epoch FROM leaders WHERE role = 'scheduler'")
    return int(row.holder.rpartition(":")[2]), row.epoch


def with_standby(client: Client) -> tuple[int, int]:
    """Wait until a second scheduler stands by; process and epoch of the first."""
    scale(client.stack, "scheduler", 2)
    client.stack.wait(
        lambda: (
            client.rows(
                "SELECT count(*) FROM processes WHERE kind = 'scheduler'"
                " AND heartbeat_at > now() - interval '3 seconds'"
            )[0][0]
            >= 2
        ),
        "a standby",
        20,
    )
    return leader(client)


def assert_dispatched_once(client: Client, ids: list[str]) -> None:
    """Each dispatch raises the lease: one means that nobody dispatched it a second time."""
    rows = client.wait_ended(ids)
    assert {(row.lease, row.attempt, row.crashes) for row in rows} == {(1, 1, 0)}


def test_standby_takes_over_from_a_frozen_leader_and_the_thawed_one_from_a_killed(
    client: Client,
) -> None:
    frozen, epoch = with_standby(client)
    os.kill(frozen, signal.SIGSTOP)
    try:
        ids = client.submit_sleeps(300, seconds=0.2)
        client.stack.wait(lambda: client.count(ids, "queued") < 300, "dispatch", TAKEOVER_SECONDS)
    finally:
        os.kill(frozen, signal.SIGCONT)
    assert client.count(ids, "queued") > 0, "it thaws while there is a line"
    assert_dispatched_once(client, ids)
    second, later = leader(client)
    assert second != frozen and later > epoch, "the thawed one stands by"

    os.kill(second, signal.SIGKILL)
    ids = client.submit_sleeps(30, seconds=0.1)
    client.stack.wait(lambda: client.count(ids, "queued") < 30, "dispatch", TAKEOVER_SECONDS)
    assert_dispatched_once(client, ids)
    third, last = leader(client)
    assert third != second and last > later


def test_line_moves_without_a_scheduler_and_everybody_is_told(client: Client) -> None:
    def readiness() -> tuple[int, str]:
        answer = client.api.call("GET", "/readyz")
        return answer.status, answer.document["status"]

    [killed] = client.submit_sleeps(1, seconds=15.0)
    client.wait_running([killed], 1)
    client.stack.command("scale", "scheduler", "0")
    client.stack.wait(lambda: readiness()[0] == 503, "it to be missed", 30)
    first = client.submit_sleeps(50, seconds=0.1)
    assert client.count(first, "queued") == 50, "it may still be back"
    for sql in (
        "UPDATE leaders SET expires_at = now() - interval '61 s' WHERE role = 'scheduler'",
        "UPDATE express_lanes SET granted_at = now() - interval '61 s'",
    ):
        with client.engine.connect() as connection:
            connection.exec_driver_sql(sql)
    client.stack.wait(lambda: readiness() == (200, "degraded"), "a relief", 20)
    assert "fairline_express_degraded 1" in client.metrics()
    assert_dispatched_once(client, first)
    # What loses its worker now, and what falls due, runs all the same.
    os.kill(int(client.job(killed).worker.rpartition(":")[2]), signal.SIGKILL)
    due = (datetime.now(UTC) + timedelta(seconds=2)).isoformat()
    deferred = client.submit_job("sleep", {"seconds": 0.1}, execute_at=due)
    [lost, later] = client.wait_ended([killed, deferred], 90)
    assert {lost.status, later.status} == {"succeeded"} and lost.crashes + later.crashes == 1
    # Submitted in the meantime, it is born in the line and does not stay there.
    client.wait_scored(client.submit(1))
    more = client.submit_sleeps(100, seconds=0.1)
    client.stack.wait(lambda: client.count(more, "queued") < 100, "dispatch", 20)
    scale(client.stack, "scheduler", 1)
    client.stack.wait(lambda: readiness() == (200, "ready"), "the scheduler", 30)
    assert_dispatched_once(client, more)
    assert "fairline_express_degraded 0" in client.metrics()
