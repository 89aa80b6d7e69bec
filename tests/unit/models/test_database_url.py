"""Database URLs that name several servers: every form becomes one, and nothing else changes."""

from __future__ import annotations

import re
from collections.abc import Callable
from urllib.parse import unquote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from sqlalchemy import make_url

from app.config import Settings
from models import database_url as module
from models.alive import connection_of
from models.database_url import (
    USUAL,
    connect_arguments,
    normal_url,
    one_server_each,
    standby_url,
)
from models.settings import DatabaseSettings
from tasks.watchdog.emergency_write import connect_arguments as emergency_arguments

START = "postgresql+psycopg2://me:p%40ss@"
SEVERAL = {
    "a:5432,b:5433/db": [("a", "5432"), ("b", "5433")],
    "a,b:5433/db?sslmode=require": [("a", None), ("b", "5433")],
    "/db?host=a:5432,b:5433&target_session_attrs=read-write": [("a", "5432"), ("b", "5433")],
    "/db?host=a:5432&host=b": [("a", "5432"), ("b", None)],
    "/db?host=a,b&port=1,2&target_session_attrs=primary": [("a", "1"), ("b", "2")],
    "/db?host=/run/one,/run/two&port=5433": [("/run/one", "5433"), ("/run/two", "5433")],
    "[::1]:1,[fe80::2]/db": [("::1", "1"), ("fe80::2", None)],
    "%2Frun%2Fone,%2Frun%2Ftwo:5433/db": [("/run/one", None), ("/run/two", "5433")],
}


@pytest.mark.parametrize("rest", SEVERAL)
def test_every_form_names_the_same_servers(rest: str) -> None:
    url = DatabaseSettings(database_url=START + rest).database_url
    each = one_server_each(connect_arguments(make_url(url)))
    assert [(one["host"], one["port"]) for one in each] == SEVERAL[rest]
    for one in each:
        assert (one["user"], one["password"], one["dbname"]) == ("me", "p@ss", "db")
        assert one["target_session_attrs"] in ("read-write", "primary")
    assert normal_url(url) == url


TLS = {"sslmode": "verify-full", "sslrootcert": "/etc/ca.pem", "sslcert": "/c", "sslkey": "/k"}


@pytest.mark.parametrize("read", [normal_url, standby_url])
@pytest.mark.parametrize("rest", ["a:1/db?", "a:1,b:2/db?", "/db?host=a:1,b:2&"])
def test_parameters_of_libpq_reach_every_server(rest: str, read: Callable[[str], str]) -> None:
    text = START + rest + "&".join(f"{name}={value}" for name, value in TLS.items())
    each = one_server_each(connect_arguments(make_url(read(text))))
    assert [one["host"] for one in each] == (["a", "b"] if "b" in rest.replace("db", "") else ["a"])
    for one in (*each, *one_server_each(emergency_arguments(make_url(read(text))))):
        assert {name: one[name] for name in TLS} == TLS
    assert TLS.items() <= connection_of(text).items()


@pytest.mark.parametrize("password", ["p?ss", "p/ss", "p?a,b", "p:s?s", "p%3Fss"])
@pytest.mark.parametrize("rest", ["a:1,b:2/db", "/db?host=a:1,b:2"])
def test_password_may_contain_what_separates_other_parts(password: str, rest: str) -> None:
    url = normal_url(f"postgresql+psycopg2://me:{password}@{rest}")
    each = one_server_each(connect_arguments(make_url(url)))
    assert [(one["host"], one["port"]) for one in each] == [("a", "1"), ("b", "2")]
    for one in each:
        assert (one["user"], one["password"]) == ("me", unquote(password))
        assert one["target_session_attrs"] == "read-write"


@pytest.mark.parametrize(
    "rest", ["a:5432/db", "/db?host=/run/one&port=5432", "[::1]:3/db?connect_timeout=3", "a/"]
)
def test_one_server_stays_as_it_is(rest: str) -> None:
    assert normal_url(START + rest) == START + rest


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        (START + "a,b/db?target_session_attrs=any", "target_session_attrs"),
        (START + "a,,b/db", "several hosts"),
        (START + "a:1,b:x/db", "several hosts"),
        # libpq would pass over such a server, and nobody would know until it has to take over.
        *((START + rest, "several hosts") for rest in ("a, b/db", "/db?host=a,%20b", "a,b,/db")),
        *(
            (START + rest, "port")
            for rest in ("a:1,b:99999/db", "a:1,b:0/db", "/db?host=a,b&port=x")
        ),
        ("postgresql+psycopg2://me:p%40ss@secret@a:1/db", "%40"),
        (START + "a,b/db?hostaddr=10.0.0.1,10.0.0.2", "hostaddr"),
        (START + "/db?host=a,b,c&port=1,2", "port"),
        (START + "a:1,b:2/db?port=3", "port"),
        ("postgresql+psycopg2://me:p%40ss@secret@a,b/db", "several hosts"),
        (START + "a:x/db", "is not a database URL"),
        ("secret", "is not a database URL"),
        *(
            (f"{scheme}://me:secret@a/db", r"must begin with postgresql\+psycopg2://")
            for scheme in ("postgres", "postgresql", "postgresql+nothing", "mysql", "sqlite")
        ),
    ],
)
def test_what_is_wrong_is_said_without_the_password(url: str, problem: str) -> None:
    with pytest.raises(ValueError, match=problem) as refused:
        normal_url(url)
    assert "p%40ss" not in str(refused.value)
    assert "secret" not in str(refused.value)


@pytest.mark.parametrize(
    "rest",
    [
        *("a:1/db", "a:1,b:2/db", "/db?host=a:1,b:2&target_session_attrs=prefer-standby"),
        "a/db?target_session_attrs=standby",
    ],
)
def test_only_standbys_are_read_from(rest: str) -> None:
    each = one_server_each(connect_arguments(make_url(standby_url(START + rest))))
    assert {one["target_session_attrs"] for one in each} == {"standby"}
    assert {one["password"] for one in each} == {"p@ss"}
    assert len(each) == (2 if "b:2" in rest else 1)


@pytest.mark.parametrize("rest", ["a/db?target_session_attrs=primary", "a,,b/db", "a:x/db"])
def test_what_is_no_url_of_standbys_is_refused_without_the_password(rest: str) -> None:
    with pytest.raises(ValidationError) as refused:
        Settings(read_database_url=START + rest)
    assert "p%40ss" not in str([error["ctx"]["error"] for error in refused.value.errors()])


HOSTS = st.from_regex(r"[a-z][a-z0-9.-]{0,20}", fullmatch=True)
PORTS = st.integers(1, 65535)


@given(st.lists(st.tuples(HOSTS, PORTS), min_size=2, max_size=5))
def test_no_server_is_lost_or_moved(servers: list[tuple[str, int]]) -> None:
    named = ",".join(f"{host}:{port}" for host, port in servers)
    for url in (f"{START}{named}/db", f"{START}/db?host={named}"):
        each = one_server_each(connect_arguments(make_url(normal_url(url))))
        assert [(one["host"], int(one["port"])) for one in each] == servers


@given(st.from_regex(USUAL, fullmatch=True))
def test_a_usual_url_is_what_reading_all_of_it_makes_of_it(url: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "USUAL", re.compile("(?!)"))
        assert normal_url(url) == url
