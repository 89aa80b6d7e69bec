"""The connection to PostgreSQL: one small, measured pool per process.

Statements never block a whole process: psycopg2 waits through a callback, which is green
under gevent and bounded in time everywhere, so that a frozen server is an error after
``db_statement_seconds`` instead of a hang.

Telemetry: :class:`PoolStats` (size, in use, waiters) is read by heartbeats and metrics.
"""

from __future__ import annotations

import select
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import psycopg2
import psycopg2.extensions
from sqlalchemy import Connection, Engine, ExceptionContext, Row, create_engine, event
from sqlalchemy.exc import DataError, DBAPIError, IntegrityError, ProgrammingError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.pool import QueuePool
from sqlalchemy.pool.base import ConnectionPoolEntry

from models.database_url import CONNECT_SECONDS, named_server, one_server_each
from models.settings import DatabaseSettings
from models.store.abandoned import ABANDONED
from models.store.clock import CLOCK_SQL, DATABASE_CLOCK
from models.store.errors import StatementTooSlow, StateStoreUnavailable, server_is_lost
from models.store.prepared import PreparedStatement
from models.store.resolving import is_name, with_addresses
from models.store.roles import DatabaseRole, explained, limit_statements, role_option

#: PostgreSQL's codes for a statement that took longer than its timeout, or waited so for a lock.
TOO_SLOW = ("57014", "55P03")
#: Classes of its codes that are the statement's own fault, besides those that have an error of
#: their own: what is not supported, what functions and triggers raise, what is too large.
OWN_FAULTS = ("0A", "2F", "38", "39", "54", "P0")
#: What a server reports of itself, with its answers and without being asked, if it only reads.
READS_ONLY = ("in_hot_standby", "default_transaction_read_only")

Parameters = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class PoolStats:
    """The connection pool of one process at one moment."""

    #: Connections the pool may open.
    size: int
    #: Connections taken now.
    in_use: int
    #: Most callers that waited for a connection at one time since the reader's last look.
    waiters: int
    #: Connections that are open and not taken.
    idle: int


class MeasuredPool(QueuePool):
    """A queue pool that counts callers that wait for a connection.

    The ``checkout`` event fires after the wait, so the acquisition itself is counted.
    """

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._waiting = 0
        #: By reader, so that two of them do not take each other's peaks.
        self._peaks: dict[str, int] = {}
        self._counting = threading.Lock()

    def _do_get(self) -> ConnectionPoolEntry:
        if self._overflow < self._max_overflow or self._pool.qsize():
            return super()._do_get()
        with self._counting:
            self._waiting += 1
            for reader, peak in self._peaks.items():
                self._peaks[reader] = max(peak, self._waiting)
        try:
            return super()._do_get()
        finally:
            with self._counting:
                self._waiting -= 1

    def read_stats(self, reader: str) -> PoolStats:
        """The state of the pool; resets this reader's peak of waiters."""
        with self._counting:
            peak = self._peaks.get(reader, 0)
            self._peaks[reader] = self._waiting
        most = self.size() + self._max_overflow
        return PoolStats(most, self.checkedout(), peak, self.checkedin())


#: Waits for an event of a file descriptor for some seconds; whether there was one.
Wait = Callable[[int, int, float], bool]


def _green_wait() -> Wait:
    from gevent.socket import timeout, wait_read, wait_write

    def wait(fd: int, event: int, seconds: float) -> bool:
        waiter = wait_read if event == select.POLLIN else wait_write
        try:
            waiter(fd, timeout=seconds)
        except timeout:
            return False
        return True

    return wait


def _plain_wait(fd: int, event: int, seconds: float) -> bool:
    poller = select.poll()
    poller.register(fd, event)
    return bool(poller.poll(seconds * 1000))


def _wait_callback(connect_seconds: float, statement_seconds: float) -> Any:
    """How psycopg2 waits for the server: bounded, and green under gevent."""
    # Not imported for the question alone.
    monkey = sys.modules.get("gevent.monkey")
    green = monkey is not None and monkey.is_module_patched("socket")
    wait: Wait = _green_wait() if green else _plain_wait

    def callback(connection: Any) -> None:
        connecting = connection.status == psycopg2.extensions.STATUS_SETUP
        # The callback is the whole process's; a connection may bring another limit.
        limit = getattr(connection, "statement_seconds", statement_seconds)
        if connecting:
            limit = getattr(connection, "connect_seconds", connect_seconds)
        deadline = time.monotonic() + limit
        while True:
            state = connection.poll()
            if state == psycopg2.extensions.POLL_OK:
                return
            event = select.POLLIN if state == psycopg2.extensions.POLL_READ else select.POLLOUT
            if not wait(connection.fileno(), event, max(0.0, deadline - time.monotonic())):
                if not connecting and not getattr(connection, "standby", False):
                    ABANDONED.add(connection)
                # psycopg2 closes a connection whose callback raised: it is never reused.
                raise psycopg2.OperationalError("the server did not answer in time")

    return callback


def open_engine(
    settings: DatabaseSettings, *, process: str = "fairline", role: DatabaseRole | None = None
) -> Engine:
    """The engine of this process: autocommit, because each group is one statement.

    ``role``: what its statements run as; None: as its login.

    A statement that changes several tables does so in one ``WITH``; a plain
    ``engine.begin()`` would cost two more round trips a group.
    """
    engine = _create_engine(settings, process, role)
    follow_primary(engine, settings.db_connect_seconds)
    event.listen(engine, "connect", read_clock)
    event.listen(engine, "connect", lambda connection, _: ABANDONED.judge(connection))
    return engine


def open_standby(
    settings: DatabaseSettings, *, process: str = "fairline", role: DatabaseRole | None = None
) -> Engine:
    """An engine for reads from the standbys that ``database_url`` names."""
    engine = _create_engine(settings, process, role)
    try_in_turn(engine, settings.db_connect_seconds, standby=True)
    keep_only(engine, reads_only)
    return engine


def _create_engine(settings: DatabaseSettings, process: str, role: DatabaseRole | None) -> Engine:
    psycopg2.extensions.set_wait_callback(
        _wait_callback(settings.db_connect_seconds, settings.db_statement_seconds)
    )
    engine = create_engine(
        settings.database_url,
        poolclass=MeasuredPool,
        pool_size=settings.db_pool_size,
        max_overflow=0,
        pool_timeout=settings.db_connect_seconds,
        isolation_level="AUTOCOMMIT",
        # Parameters hold applications; they do not belong in logs.
        hide_parameters=True,
        connect_args={
            "application_name": process[:63],
            # The hot tables are in memory: at its default of 4 the planner would rather read
            # a whole table than look up a group of 500 by key.
            # The server gives up when the client does: an abandoned statement would hold a
            # connection, and be committed after its caller was told otherwise.
            # What is prepared takes arrays: a plan for their very values is no better than the
            # general one, and the first five executions would each take as long again.
            "options": "-c timezone=UTC -c jit=off -c random_page_cost=1.1"
            " -c plan_cache_mode=force_generic_plan"
            # A moment sooner, so that it is the server that reports a slow statement.
            f" -c statement_timeout={int(settings.db_statement_seconds * 950)}"
            # A process that is frozen within a transaction holds its locks for so long.
            f" -c idle_in_transaction_session_timeout={int(settings.db_statement_seconds * 1000)}"
            f"{role_option(role)}",
            "keepalives_idle": 10,
            "keepalives_interval": 5,
            "keepalives_count": 3,
        },
    )
    limit_statements(engine)
    return engine


def read_clock(connection: Any, _record: ConnectionPoolEntry) -> None:
    """Learn the database's clock.

    The first connection is opened to look up the caller's key, so the clock is known before the
    first id is made.
    """
    with connection.cursor() as cursor:
        sent = DATABASE_CLOCK.local_ns()
        cursor.execute(f"SELECT {CLOCK_SQL}")
        [[server]] = cursor.fetchall()
        DATABASE_CLOCK.learn(sent, server, DATABASE_CLOCK.local_ns())


def reads_only(connection: Any) -> bool:
    """Whether the server said with its last answer that it takes no writes; asks nothing."""
    return any(connection.get_parameter_status(name) == "on" for name in READS_ONLY)


def follow_primary(engine: Engine, connect_seconds: float = CONNECT_SECONDS) -> None:
    """Try the servers of the URL in turn, and keep no connection to one that only reads."""
    try_in_turn(engine, connect_seconds)
    keep_only(engine, lambda connection: not reads_only(connection))


def _connect_one(server: Mapping[str, Any], seconds: float, standby: bool) -> Any:
    """A connection to this server, looked up and opened within the time."""
    deadline = time.monotonic() + seconds
    arguments = with_addresses(server, seconds)
    own = {"connect_seconds": deadline - time.monotonic(), "standby": standby}
    factory = type("OneServer", (psycopg2.extensions.connection,), own)
    return psycopg2.connect(**arguments, connection_factory=factory)


def try_in_turn(engine: Engine, connect_seconds: float, *, standby: bool = False) -> None:
    """Connect to the first server of the URL that is as wanted; each has its part of the time."""
    latest = 0  # the server that answered last; the others wait for their turn

    def open_connection(
        _dialect: Any, _record: Any, _args: Any, arguments: dict[str, Any]
    ) -> Any | None:
        nonlocal latest
        servers = one_server_each(arguments)
        if len(servers) == 1 and not standby and not is_name(arguments):
            return None
        turns = [(latest + turn) % len(servers) for turn in range(len(servers))]
        if not standby:
            turns.sort(key=lambda place: ABANDONED.may_be_demoted(named_server(servers[place])))
        for place in turns:
            try:
                opened = _connect_one(servers[place], connect_seconds / len(servers), standby)
            except psycopg2.OperationalError as error:
                refused = error
            else:
                latest = place
                return opened
        raise refused

    event.listen(engine, "do_connect", open_connection)


def keep_only(engine: Engine, wanted: Callable[[Any], bool]) -> None:
    """Keep no connection to a server that is lost, or no longer as wanted."""

    def judge(context: ExceptionContext) -> None:
        # All connections of the pool are given up: they were made to the same server.
        if server_is_lost(getattr(context.original_exception, "pgcode", None)):
            context.is_disconnect = True

    def keep(connection: Any, record: ConnectionPoolEntry) -> None:
        if connection is not None and (connection.closed or not wanted(connection)):
            record.invalidate()

    event.listen(engine, "handle_error", judge)
    event.listen(engine, "checkin", keep)


def pool_stats(engine: Engine, reader: str) -> PoolStats:
    """How the engine's pool is doing, for one of its readers."""
    pool = engine.pool
    assert isinstance(pool, MeasuredPool)
    return pool.read_stats(reader)


@contextmanager
def connect(engine: Engine) -> Iterator[Connection]:
    """A connection for one statement; every way the server can be away is one error."""
    try:
        with engine.connect() as connection:
            yield connection
    except (DataError, IntegrityError, ProgrammingError):
        raise  # the statement's own fault
    except (DBAPIError, PoolTimeout, psycopg2.OperationalError) as error:
        origin = getattr(error, "orig", error)
        code = getattr(origin, "pgcode", None) or ""
        if code.startswith(OWN_FAULTS):
            raise
        if code in TOO_SLOW:
            raise StatementTooSlow(str(origin).strip()) from error
        # Also a server that only reads, say a standby: it may be another one in a moment.
        # SQLAlchemy lets psycopg2's own error pass where it sets the isolation level.
        message = explained(str(origin).strip(), engine.url.username)
        raise StateStoreUnavailable(message) from error


def fetch(
    engine: Engine, statement: str | PreparedStatement, parameters: Parameters | None = None
) -> Sequence[Row[Any]]:
    """The rows that one statement returns, committed."""
    with connect(engine) as connection:
        if isinstance(statement, PreparedStatement):
            return statement.execute(connection, parameters or {}).all()
        return connection.exec_driver_sql(statement, dict(parameters or {})).all()


def execute(engine: Engine, statement: str | PreparedStatement, parameters: Parameters) -> int:
    """Run and commit one statement; how many rows it changed."""
    with connect(engine) as connection:
        if isinstance(statement, PreparedStatement):
            return statement.execute(connection, parameters).rowcount
        return connection.exec_driver_sql(statement, dict(parameters)).rowcount


@contextmanager
def transaction(engine: Engine) -> Iterator[Connection]:
    """A transaction of several statements, for the cold paths."""
    with connect(engine) as connection:
        scoped = connection.execution_options(isolation_level="READ COMMITTED")
        with scoped.begin():
            yield scoped
