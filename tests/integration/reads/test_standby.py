"""What a process knows of its standby, measured against a real server."""

from __future__ import annotations

import time

from app.reads.standby import StandbyReads
from models.settings import DatabaseSettings
from models.store.session import open_engine
from tests.support.waiting import wait_for

NOWHERE = "postgresql+psycopg2://nobody@/fairline?host=/nowhere"


def reads(primary: str, standby: str) -> StandbyReads:
    """The primary may stand for a standby that has everything."""
    engines = [open_engine(DatabaseSettings(database_url=url)) for url in (standby, primary)]
    return StandbyReads(*engines, most_lag_seconds=1.0)


def test_lag_is_measured_when_it_is_first_asked_for(database_url: str) -> None:
    standby = reads(database_url, database_url)
    time.sleep(0.2)
    assert standby.lag_seconds is None, "the age of the process is not a lag"
    wait_for(lambda: standby.lag_seconds is not None)
    assert standby.usable


def test_lag_of_a_standby_that_never_answered_is_infinite(database_url: str) -> None:
    standby = reads(database_url, NOWHERE)
    assert standby.lag_seconds is None
    wait_for(lambda: standby.lag_seconds == float("inf"))
    assert not standby.usable
