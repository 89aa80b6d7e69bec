"""The connection to PostgreSQL: every way in which the server can be away is one error."""

from __future__ import annotations

import psycopg2
import pytest
from sqlalchemy import Engine

from models.store.errors import StateStoreUnavailable
from models.store.session import connect, transaction


def test_a_server_that_goes_while_a_transaction_opens_is_away(
    engine: Engine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with connect(engine) as connection:
        connection.exec_driver_sql("SELECT 1")

    def go_away(*_: object) -> None:
        raise psycopg2.OperationalError("terminating connection due to unexpected postmaster exit")

    with monkeypatch.context() as patched:
        patched.setattr(engine.dialect, "set_isolation_level", go_away)
        with pytest.raises(StateStoreUnavailable, match="postmaster"), transaction(engine):
            pass
    with transaction(engine) as connection:
        assert connection.exec_driver_sql("SELECT 1").scalar() == 1
