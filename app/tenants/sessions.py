"""Sessions of browsers: a random token in a cookie stands for the key that somebody signed in with.

The table has only a SHA-256 digest of the token, and the key's id. A session ends at sign-out, when
it was idle for too long, at its absolute limit, and with its key: whose it is is looked up in the
directory, where a revoked or expired key is refused. In place of the key it may have an operator
who signed in by OpenID Connect, and ends when the rules no longer let them in.

A session that was read is believed for a second, so sign-out takes as long to reach the other
processes. Streams of live pages read it without using it: an open tab is idle.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any, NamedTuple

from sqlalchemy import Engine, Row

from app.errors import Forbidden, Unauthenticated
from app.tenants.directory import Caller, Callers
from app.tenants.operator_rules import ExternalOperator, OperatorRules
from models.audit import Act, record, recording
from models.store.group_commit import GroupCommit
from models.store.session import execute, fetch

TOKEN_BYTES = 32
#: A token as ``token_urlsafe`` makes it.
TOKEN = re.compile(r"[A-Za-z0-9_-]{43}")
BELIEVED_SECONDS = 1.0
#: How many are remembered for that time.
MOST_BELIEVED = 10_000

BEGIN = """
    INSERT INTO sessions (digest, key_id, issuer, subject, email, granted_by, expires_at, ends_at)
    VALUES (%(digest)s, %(key)s, %(issuer)s, %(subject)s, %(email)s, %(granted_by)s,
            now() + make_interval(secs => %(longest)s),
            now() + make_interval(secs => least(%(idle)s, %(longest)s)))
"""
END = "DELETE FROM sessions WHERE digest = ANY (%(digests)s::bytea[])"
#: A use within a sixtieth of the idle limit after another is not written.
READ = """
    WITH used AS (
        SELECT digest FROM sessions
        WHERE digest = ANY (%(used)s::bytea[]) AND ends_at > now()
              AND ends_at < least(expires_at, now() + make_interval(secs => %(idle)s * 59 / 60))
        ORDER BY digest FOR NO KEY UPDATE SKIP LOCKED
    ), extended AS (
        UPDATE sessions SET ends_at = least(expires_at, now() + make_interval(secs => %(idle)s))
        FROM used WHERE sessions.digest = used.digest
    )
    SELECT digest, key_id, issuer, subject, email, granted_by FROM sessions
    WHERE digest = ANY (%(digests)s::bytea[]) AND ends_at > now()
"""

NO_OPERATOR = dict.fromkeys(ExternalOperator._fields)
#: Whose a session is: the id of a key, or an operator without one.
Owner = str | ExternalOperator


class SessionRead(NamedTuple):
    """A session to read; ``used``: for somebody who did something."""

    digest: bytes
    used: bool


class Believed(NamedTuple):
    """A session that was read a moment ago."""

    owner: Owner
    used: bool
    until: float


class Sessions:
    """The sessions of browsers, as one process reads and writes them."""

    def __init__(
        self,
        engine: Engine,
        directory: Callers,
        read_seconds: float,
        *,
        idle_seconds: float,
        longest_seconds: float,
        rules: OperatorRules | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._engine = engine
        self._directory = directory
        self._read_seconds = read_seconds
        self._idle = idle_seconds
        self._longest = longest_seconds
        self._rules = rules
        self._clock = clock
        self._believed: dict[bytes, Believed] = {}
        self._reads: GroupCommit[SessionRead, Owner | None] = GroupCommit(
            self._read, name="sessions"
        )

    def begin(self, owner: Owner, tenant: str | None = None) -> str:
        """A new session of the key with this id, or of an operator without one; its token, which is
        stored nowhere."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        named = owner._asdict() if isinstance(owner, ExternalOperator) else dict(NO_OPERATOR)
        values = {
            "digest": digest_of(token),
            "key": owner if isinstance(owner, str) else None,
            "idle": self._idle,
            "longest": self._longest,
        }
        with recording(self._engine) as connection:
            connection.exec_driver_sql(BEGIN, values | named)
            after = {name: value for name, value in named.items() if value is not None}
            record(connection, Act.SESSION_BEGIN, tenant=tenant, after=after)
        return token

    def end(self, tokens: Sequence[str]) -> None:
        """Sign out: in this process at once, in the others within about a second."""
        digests = [digest_of(token) for token in tokens if TOKEN.fullmatch(token)]
        if digests:
            execute(self._engine, END, {"digests": digests})
        for digest in digests:
            self._believed.pop(digest, None)

    def caller(self, token: str, *, used: bool) -> Caller:
        """Whose session this is; ``used``: whether that counts as a use of it."""
        owner = self._owner_of(digest_of(token), used) if TOKEN.fullmatch(token) else None
        if isinstance(owner, str):
            return self._directory.of_id(owner)
        if owner is not None and self._rules is not None:
            with suppress(Forbidden):
                return self._rules.caller(owner)
        raise Unauthenticated("This session has ended. Sign in again.")

    def _owner_of(self, digest: bytes, used: bool) -> Owner | None:
        known = self._believed.get(digest)
        if known is not None and known.used >= used and self._clock() < known.until:
            return known.owner
        owner = self._reads.submit(SessionRead(digest, used), self._read_seconds)
        self._believed.pop(digest, None)
        if owner is not None:
            self._believed[digest] = Believed(owner, used, self._clock() + BELIEVED_SECONDS)
            while len(self._believed) > MOST_BELIEVED:
                del self._believed[next(iter(self._believed))]
        return owner

    def _read(self, reads: Sequence[SessionRead]) -> list[Owner | None]:
        values = {
            "digests": list({read.digest for read in reads}),
            "used": list({read.digest for read in reads if read.used}),
            "idle": self._idle,
        }
        found = {bytes(row.digest): owner_of(row) for row in fetch(self._engine, READ, values)}
        return [found.get(read.digest) for read in reads]


def owner_of(row: Row[Any]) -> Owner:
    """Whose the session of a row of READ is."""
    if row.key_id is not None:
        return str(row.key_id)
    return ExternalOperator(row.issuer, row.subject, row.email, row.granted_by)


def digest_of(token: str) -> bytes:
    """What is stored of a token."""
    return hashlib.sha256(token.encode()).digest()
