"""Sessions of browsers: what ends them, what is stored, and what counts as a use."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Iterator
from datetime import timedelta

import pytest

from app.errors import Unauthenticated
from app.tenants import sessions as module
from app.tenants.changes import CreatedKey, issue_key, revoke_key
from app.tenants.directory import Directory
from app.tenants.sessions import Sessions
from models.store.clock import DATABASE_CLOCK
from tests.support.database_fixture import DatabaseFixture

IDLE, LONGEST = 3600.0, 7200.0


class Clock:
    """A clock that stands until it is set: what was read is believed until then."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


class SteppedSessions(Sessions):
    """Sessions that believe nothing for longer than the test says."""

    def __init__(self, database: DatabaseFixture) -> None:
        self.time = Clock()
        self.directory = Directory(database.engine, 2.0, refresh_seconds=0, clock=self.time)
        limits = {"idle_seconds": IDLE, "longest_seconds": LONGEST}
        super().__init__(database.engine, self.directory, 2.0, clock=self.time, **limits)

    def is_open(self, token: str, *, used: bool = True) -> bool:
        """Whether the session goes on, by what the database says now."""
        self.time.now += module.BELIEVED_SECONDS
        try:
            return self.caller(token, used=used).tenant is None
        except Unauthenticated:
            return False


@pytest.fixture
def database(api_database: DatabaseFixture) -> Iterator[DatabaseFixture]:
    api_database.execute("DELETE FROM sessions; DELETE FROM api_keys")
    yield api_database
    api_database.execute("DELETE FROM sessions; DELETE FROM api_keys")


@pytest.fixture
def sessions(database: DatabaseFixture) -> SteppedSessions:
    return SteppedSessions(database)


@pytest.fixture
def issued(database: DatabaseFixture) -> CreatedKey:
    return issue_key(database.engine, None)


def pass_time(database: DatabaseFixture, seconds: float) -> None:
    """As if the sessions had begun, and been used, so much earlier."""
    database.execute(
        "UPDATE sessions SET created_at = created_at - make_interval(secs => %s),"
        " expires_at = expires_at - make_interval(secs => %s),"
        " ends_at = ends_at - make_interval(secs => %s)",
        *[seconds] * 3,
    )


def seconds_left(database: DatabaseFixture) -> float:
    [row] = database.query(
        "SELECT extract(epoch FROM ends_at - now())::float8 AS left FROM sessions"
    )
    return float(row.left)


def test_only_a_digest_of_the_token_is_stored(
    sessions: SteppedSessions, database: DatabaseFixture, issued: CreatedKey
) -> None:
    tokens = {sessions.begin(issued.id) for _ in range(20)}
    assert len(tokens) == 20
    rows = database.query("SELECT digest, sessions::text AS row FROM sessions")
    assert {bytes(row.digest) for row in rows} == {
        hashlib.sha256(token.encode()).digest() for token in tokens
    }
    secret = issued.key.split("_")[2]
    assert not any(text in row.row for row in rows for text in (*tokens, secret))


def test_a_session_stands_for_its_key(sessions: SteppedSessions, issued: CreatedKey) -> None:
    caller = sessions.caller(sessions.begin(issued.id), used=True)
    assert caller == sessions.directory.caller(f"Bearer {issued.key}")


@pytest.mark.parametrize("token", ["", "x", "é" * 43, "b" * 43, "a" * 44, "\0" * 43])
def test_what_is_no_token_of_a_session_opens_nothing(sessions: SteppedSessions, token: str) -> None:
    with pytest.raises(Unauthenticated, match="session has ended"):
        sessions.caller(token, used=True)


def test_an_idle_session_ends_and_a_used_one_goes_on(
    sessions: SteppedSessions, database: DatabaseFixture, issued: CreatedKey
) -> None:
    token = sessions.begin(issued.id)
    pass_time(database, IDLE - 60)
    assert sessions.is_open(token)  # extends it
    assert seconds_left(database) > IDLE - 5
    pass_time(database, IDLE - 60)
    assert sessions.is_open(token, used=False)  # a stream does not
    assert 0 < seconds_left(database) <= 60
    pass_time(database, 61)
    assert not sessions.is_open(token)
    assert not sessions.is_open(token)  # and asking does not revive it


def test_a_page_that_is_used_while_it_is_streamed_extends_the_session(
    sessions: SteppedSessions, database: DatabaseFixture, issued: CreatedKey
) -> None:
    token = sessions.begin(issued.id)
    pass_time(database, IDLE / 2)
    sessions.caller(token, used=False)
    sessions.caller(token, used=True)  # within the second in which it is believed
    assert seconds_left(database) > IDLE - 5


def test_no_use_extends_a_session_beyond_its_absolute_limit(
    sessions: SteppedSessions, database: DatabaseFixture, issued: CreatedKey
) -> None:
    token = sessions.begin(issued.id)
    for _ in range(3):
        pass_time(database, IDLE / 2)
        assert sessions.is_open(token)
    assert seconds_left(database) <= LONGEST - 1.5 * IDLE
    pass_time(database, IDLE / 2)
    assert not sessions.is_open(token)


def test_a_use_is_not_written_again_at_once(
    sessions: SteppedSessions, database: DatabaseFixture, issued: CreatedKey
) -> None:
    token = sessions.begin(issued.id)
    version = "SELECT xmin::text AS version FROM sessions"
    before = database.query(version)
    assert sessions.is_open(token)
    assert database.query(version) == before
    pass_time(database, IDLE / 60 + 5)
    before = database.query(version)
    assert sessions.is_open(token)
    assert database.query(version) != before


def test_sign_out_ends_it_here_at_once_and_elsewhere_within_a_second(
    sessions: SteppedSessions, database: DatabaseFixture, issued: CreatedKey
) -> None:
    other = SteppedSessions(database)
    token, kept = sessions.begin(issued.id), sessions.begin(issued.id)
    for one in (sessions, other):
        one.caller(token, used=True)
    sessions.end([token, "nonsense"])
    with pytest.raises(Unauthenticated):
        sessions.caller(token, used=True)
    assert not other.is_open(token)
    assert sessions.is_open(kept)
    assert len(database.query("SELECT 1 FROM sessions")) == 1


def test_a_session_ends_with_its_key(
    sessions: SteppedSessions, database: DatabaseFixture, issued: CreatedKey
) -> None:
    brief = issue_key(
        database.engine, None, expires_at=DATABASE_CLOCK.now() + timedelta(seconds=60)
    )
    of_revoked, of_brief = sessions.begin(issued.id), sessions.begin(brief.id)
    assert sessions.is_open(of_revoked) and sessions.is_open(of_brief)
    revoke_key(database.engine, issued.id)
    sessions.directory.refresh()
    assert not sessions.is_open(of_revoked) and sessions.is_open(of_brief)
    sessions.time.now += 60
    with pytest.raises(Unauthenticated, match="expired"):
        sessions.caller(of_brief, used=True)
    for key in ("nobody00", issued.id):
        assert not sessions.is_open(sessions.begin(key))


def test_what_is_believed_is_bounded(
    sessions: SteppedSessions, issued: CreatedKey, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MOST_BELIEVED", 5)
    for _ in range(20):
        sessions.caller(sessions.begin(issued.id), used=True)
    for _ in range(20):
        assert not sessions.is_open(secrets.token_urlsafe(32))
    assert len(sessions._believed) == 5
