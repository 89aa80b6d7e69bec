"""Backends whose statements were given up: known by their server, not only by their number."""

from __future__ import annotations

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import psycopg2
import pytest
from sqlalchemy import create_engine
from sqlalchemy.exc import OperationalError

from models.store import session
from models.store.abandoned import ONLY_READ, AbandonedBackends

URL = "postgresql+psycopg2://nobody@/fairline?host=a,b&port=,6000"


@dataclass
class Server:
    """A server with backends that are at work."""

    host: str
    port: int = 5432
    working: tuple[int, ...] = ()
    #: Pids that it was asked for.
    asked: list[int] = field(default_factory=list)

    def connection(self, pid: int) -> Any:
        cursor = MagicMock()
        cursor.__enter__.return_value = cursor
        cursor.execute.side_effect = lambda _, given=((),): self.asked.extend(given[0])
        cursor.fetchall.side_effect = lambda: [(one,) for one in self.asked if one in self.working]
        return SimpleNamespace(
            info=SimpleNamespace(host=self.host, port=self.port),
            get_backend_pid=lambda: pid,
            cursor=lambda: cursor,
            statements=lambda: [call.args[0] for call in cursor.execute.call_args_list],
        )


def test_two_servers_may_use_the_same_pid() -> None:
    one, other = Server("a", working=(7,)), Server("b")
    abandoned = AbandonedBackends()
    for server in (one, other):
        abandoned.add(server.connection(7))
    abandoned.judge(other.connection(8))
    assert not abandoned.may_be_demoted(("b", 5432)), "it has come back"
    assert abandoned.may_be_demoted(("a", 5432))
    new = one.connection(8)
    abandoned.judge(new)
    assert new.statements()[-1] == ONLY_READ


def test_a_server_is_not_asked_for_backends_of_another() -> None:
    one, other = Server("a"), Server("a", 5433, working=(7,))
    abandoned = AbandonedBackends()
    abandoned.add(one.connection(7))
    new = other.connection(8)
    abandoned.judge(new)
    assert new.statements() == [], "7 is somebody else there"


@pytest.mark.parametrize(
    ("given_up", "standby", "first"),
    [
        (Server("elsewhere"), False, "a"),  # as far in front as a, in another URL
        (Server("a"), False, "b"),
        (Server("b", 6000), False, "a"),
        (Server("a"), True, "a"),  # no standby is taken for a former primary
    ],
)
def test_another_server_is_tried_first_if_this_one_may_be_demoted(
    monkeypatch: pytest.MonkeyPatch, given_up: Server, standby: bool, first: str
) -> None:
    tried = []

    def refuse(**arguments: Any) -> None:
        tried.append(arguments["host"])
        raise psycopg2.OperationalError("refused")

    abandoned = AbandonedBackends()
    abandoned.add(given_up.connection(7))
    monkeypatch.setattr(session, "ABANDONED", abandoned)
    monkeypatch.setattr(session, "with_addresses", lambda server, _: dict(server))
    monkeypatch.setattr(psycopg2, "connect", refuse)
    engine = create_engine(URL)
    session.try_in_turn(engine, 1.0, standby=standby)
    with pytest.raises(OperationalError):
        engine.connect()
    assert tried[0] == first
    assert sorted(tried) == ["a", "b"]
