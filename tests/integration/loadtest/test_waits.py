"""What PostgreSQL's backends wait for is seen, with the statement that waits."""

from __future__ import annotations

import threading
import time

import pytest
from sqlalchemy import Engine, text
from sqlalchemy.exc import OperationalError

from loadtest.fleet import until
from loadtest.lab.cost.waits import LOCK, Wait, WaitSampler

RENAME = text("UPDATE tenants SET name = :name WHERE id = 1")
WAITS = Wait(LOCK, "transactionid", "update tenants")


def test_a_statement_that_waits_for_a_row_is_seen(engine: Engine, database_url: str) -> None:
    def rename() -> None:
        with engine.connect() as connection:
            connection.execute(RENAME, {"name": "second"})

    with WaitSampler(database_url) as sampler:
        with engine.connect().execution_options(isolation_level="READ COMMITTED") as holder:
            holder.execute(RENAME, {"name": "first"})
            waiter = threading.Thread(target=rename)
            waiter.start()
            until(lambda: sampler.waited.counts[WAITS] >= 3, 20.0, "a wait for a row", 0.01)
            holder.rollback()
        waiter.join(10)
        looked = sampler.waited.looks
        until(lambda: sampler.waited.looks > looked + 3, 20.0, "more looks", 0.01)
    waited = sampler.waited
    assert 0 < waited.by_kind()[LOCK] < 1
    assert waited.longest(1)[0][0] == WAITS
    time.sleep(0.1)
    assert sampler.waited.looks == waited.looks, "it has stopped"


def test_a_server_that_cannot_be_read_is_an_error_and_not_a_run_without_waits(
    database_url: str,
) -> None:
    nowhere = database_url.replace("port=5432", "port=1")
    with pytest.raises(OperationalError), WaitSampler(nowhere):
        pass
