"""Addresses of database servers: looked up beside the process, and never for longer than it may."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg2
import pytest

from models.settings import DatabaseSettings
from models.store.errors import StateStoreUnavailable
from models.store.resolving import is_name, with_addresses
from models.store.session import fetch, open_engine


@pytest.fixture
def silent_resolver(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """A resolver that does not answer; which names it was asked for."""
    asked: list[str] = []
    answer = threading.Event()

    def getaddrinfo(host: str, *_: Any, **__: Any) -> None:
        asked.append(host)
        answer.wait(30)
        raise socket.gaierror("too late")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    yield asked
    answer.set()


@pytest.mark.parametrize("servers", ["db1.example", "db1.example:1,db2.example:2"])
def test_a_resolver_that_does_not_answer_takes_no_longer_than_a_server(
    silent_resolver: list[str], servers: str
) -> None:
    url = f"postgresql+psycopg2://me@{servers}/db"
    engine = open_engine(DatabaseSettings(database_url=url, db_connect_seconds=0.4))
    began = time.monotonic()
    with pytest.raises(StateStoreUnavailable, match="the resolver did not answer"):
        fetch(engine, "SELECT 1")
    assert time.monotonic() - began < 15, "it answers after 30"
    assert silent_resolver == [name.partition(":")[0] for name in servers.split(",")]


def test_every_address_is_tried_and_the_name_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    kind = (socket.AF_INET, socket.SOCK_STREAM, 6, "")
    found = [(*kind, ("10.0.0.1", 0)), (*kind, ("10.0.0.1", 0)), (*kind, ("::1", 0, 0, 0))]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
    server = {"host": "db.example", "port": "5433", "sslmode": "verify-full"}
    looked_up = {"host": "db.example,db.example", "hostaddr": "10.0.0.1,::1"}
    assert with_addresses(server, 1.0) == {**server, **looked_up}


def test_an_unknown_name_is_an_error_that_lets_the_next_server_be_tried(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def getaddrinfo(*_: Any, **__: Any) -> None:
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", getaddrinfo)
    with pytest.raises(psycopg2.OperationalError, match=r"db\.example has no address: .*not known"):
        with_addresses({"host": "db.example"}, 1.0)


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "/run/postgresql", "@abstract", "", None])
def test_addresses_and_folders_are_not_looked_up(silent_resolver: list[str], host: object) -> None:
    assert with_addresses({"host": host, "port": None}, 1.0) == {"host": host, "port": None}
    assert not is_name({"host": "db.example", "hostaddr": "10.0.0.1"})
    assert silent_resolver == []
