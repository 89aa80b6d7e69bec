"""A primary with a streaming standby, two real servers."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

import psycopg2

from app.stack.postgres import DATABASE, INSTALL, PORT, SUPERUSER, AdminConnection, EmbeddedPostgres
from app.stack.privileges import give, server_account
from app.stack.services import Running, running
from tests import ROOT

REPLICATED = {"wal_level": "replica", "max_wal_senders": "4", "hot_standby": "on"}

Postgres = Running[EmbeddedPostgres]


def ask(server: Postgres, sql: str, *parameters: Any, database: str = "postgres") -> list[Any]:
    """Run a statement on one server, whatever hosts others use."""
    connection = psycopg2.connect(
        connection_factory=AdminConnection,
        dbname=database,
        user=SUPERUSER,
        host=str(server.service.sockets),
        port=PORT,
    )
    try:
        connection.autocommit = True
        with connection.cursor() as cursor:
            cursor.execute(sql, parameters)
            return cursor.fetchall() if cursor.description else []
    finally:
        connection.close()


def set_server(server: Postgres, name: str, value: str | None) -> None:
    """Change a setting of a running server; None: as it was."""
    ask(server, f"ALTER SYSTEM SET {name} = '{value}'" if value else f"ALTER SYSTEM RESET {name}")
    ask(server, "SELECT pg_reload_conf()")


def migrate(url: str) -> None:
    subprocess.run(
        [sys.executable, "-m", "alembic", "upgrade", "head"],
        cwd=ROOT,
        env={**os.environ, "FAIRLINE_DATABASE_URL": url},
        check=True,
        capture_output=True,
    )


def copy_of(primary: EmbeddedPostgres, home: Path) -> EmbeddedPostgres:
    """A standby of the primary, not started yet."""
    standby = EmbeddedPostgres(home, REPLICATED)
    standby.folder.mkdir(parents=True)
    account = server_account()
    standby.data.mkdir(mode=0o700)
    give(standby.data, account)
    subprocess.run(
        [
            *(str(INSTALL / "bin/pg_basebackup"), "-D", str(standby.data), "-R", "-c", "fast"),
            *("-h", str(primary.sockets), "-p", str(PORT), "-U", SUPERUSER),
        ],
        cwd=standby.data,
        user=account.uid if account else None,
        group=account.gid if account else None,
        check=True,
        capture_output=True,
    )
    return standby


@dataclass(frozen=True, slots=True)
class Pair:
    """A primary and its standby."""

    primary: Postgres
    standby: Postgres

    def url(self) -> str:
        """Names both servers, in this order."""
        sockets = [quote(str(one.service.sockets)) for one in (self.primary, self.standby)]
        return f"postgresql+psycopg2://{SUPERUSER}@/{DATABASE}?host={','.join(sockets)}"

    def catch_up(self) -> None:
        """Wait until the standby has everything."""
        [[end]] = ask(self.primary, "SELECT pg_current_wal_lsn()")
        deadline = time.monotonic() + 30
        while not ask(self.standby, "SELECT pg_last_wal_replay_lsn() >= %s::pg_lsn", end)[0][0]:
            assert time.monotonic() < deadline, "the standby does not follow"
            time.sleep(0.02)

    def promote(self) -> None:
        ask(self.standby, "SELECT pg_promote()")


@contextmanager
def replicated(home: Path) -> Iterator[Pair]:
    """Both servers, with a migrated database ``fairline``."""
    with ExitStack() as stack:
        first = EmbeddedPostgres(home / "first", REPLICATED)
        primary = stack.enter_context(running(first, home / "first/logs"))
        first.create_database()
        migrate(first.url())
        second = copy_of(first, home / "second")
        yield Pair(primary, stack.enter_context(running(second, home / "second/logs")))
