"""Two schedulers, and each tick fires once: while one makes up for an outage, it is frozen.

The wait for its lease is shortened by setting the clock in the row back.
"""

from __future__ import annotations

import os
import signal
from collections import Counter

from tests.acceptance.client import Client
from tests.acceptance.test_scheduler_loss import leader, with_standby

MADE = """
    SELECT job.execute_at, job.id::text FROM jobs AS job, schedules AS schedule
    WHERE job.type = 'sleep' AND schedule.name = %s AND job.priority = schedule.priority
"""


def test_each_tick_fires_once_though_the_leader_is_frozen_in_the_middle(client: Client) -> None:
    first, epoch = with_standby(client)
    body = {
        "name": "every minute",
        "cron": "* * * * *",
        "type": "sleep",
        "payload": {"seconds": 0},
        "priority": 77,  # tells its jobs from others'
        "catch_up": "all",
    }
    answer = client.api.call("POST", "/schedules", body)
    assert answer.status == 201, answer
    path = f"/schedules/{answer.document['id']}"
    with client.engine.connect() as connection:
        connection.exec_driver_sql(
            "UPDATE schedules SET next_at = date_trunc('minute', now()) - interval '600 minutes'"
        )
    client.stack.wait(lambda: bool(client.rows(MADE, body["name"])), "ticks", 20, pause=0.01)
    os.kill(first, signal.SIGSTOP)
    try:
        frozen_at = len(client.rows(MADE, body["name"]))
        with client.engine.connect() as connection:
            connection.exec_driver_sql("UPDATE leaders SET expires_at = now() - interval '1 s'")
        client.stack.wait(lambda: leader(client)[1] > epoch, "a takeover", 30)
        client.stack.wait(lambda: len(client.rows(MADE, body["name"])) > 600, "all ticks", 40)
    finally:
        os.kill(first, signal.SIGCONT)
    assert frozen_at < 600, "it was frozen in the middle"
    rows = client.rows(MADE, body["name"])
    client.wait_ended([row.id for row in rows])
    ticks = Counter(row.execute_at for row in client.rows(MADE, body["name"]))
    shown = client.api.call("GET", path).document
    assert set(ticks.values()) == {1}
    assert len(ticks) == shown["made"]
    assert (max(ticks) - min(ticks)).total_seconds() == (len(ticks) - 1) * 60
    assert client.api.call("DELETE", path).status == 204
