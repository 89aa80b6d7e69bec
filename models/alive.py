"""``python -m models.alive KIND [QUEUE]``: does such a process report from this host? For probes.

Every process says in ``processes`` that it is alive, every two seconds: this asks whether those of
this container did. With ``--hung`` the question is whether they ought to be restarted: only if they
are silent while others report, and with ``--starting`` only whether they report yet. A database
that is away, frozen or read-only is nobody's fault: then both pass.

Takes 0.1 s of CPU time, as it imports little, and SQLAlchemy only for unusual URLs; `celery inspect
ping` takes ten times that and asks everybody.
"""

from __future__ import annotations

import argparse
import re
import socket
import sys
import threading
from typing import Any, NamedTuple

import psycopg2
from psycopg2.extensions import parse_dsn

from models.database_url import CONNECT_SECONDS, connect_arguments, normal_url
from models.secret_files import read_secret
from models.store.roles import DatabaseRole, role_option

#: Probes have 15 s: a database that does not answer is found out before that.
ANSWER_SECONDS = 8.0
#: For all of its servers, of which each has CONNECT_SECONDS at least.
ALL_CONNECT_SECONDS = 6
#: As in ``models.presence``, which takes longer to import; a test compares.
LOST_SECONDS = 6

#: A URL that libpq and SQLAlchemy read in the same way.
PLAIN = re.compile(
    r"postgresql\+psycopg2://([\w.~-]+(:[\w.~-]*)?@)?[\w.-]+(:\d+)?(,[\w.-]+(:\d+)?)*/[\w-]+", re.A
)

READ_REPORTS = f"""
    SELECT coalesce(bool_or(ours AND age < interval '{LOST_SECONDS} s'), false),
           coalesce(bool_or(ours AND age < interval '60 s'), false),
           coalesce(bool_or(age < interval '{LOST_SECONDS} s'), false)
    FROM (SELECT now() - heartbeat_at AS age, kind = %(kind)s AND strpos(name, %(host)s) > 0
                 AND (%(queue)s::text IS NULL OR %(queue)s = ANY (pools)) AS ours
          FROM processes) AS reported
"""


class Reports(NamedTuple):
    """What was reported of late."""

    #: Our processes, within LOST_SECONDS and within a minute.
    alive: bool
    lately: bool
    #: Anybody, within LOST_SECONDS.
    anybody: bool


def connection_of(url: str) -> dict[str, Any]:
    """The URL as psycopg2 takes it; libpq's errors about others would show the password."""
    arguments: dict[str, Any]
    if PLAIN.fullmatch(url):
        arguments = parse_dsn(url.replace("+psycopg2", ""))
    else:
        from sqlalchemy import make_url  # takes half a second

        arguments = connect_arguments(make_url(normal_url(url)))
    servers = str(arguments.get("host", "")).count(",") + 1
    arguments["connect_timeout"] = max(CONNECT_SECONDS, ALL_CONNECT_SECONDS // servers)
    wanted = "read-write" if servers > 1 else "any"
    return {"target_session_attrs": wanted, **arguments}


def read_reports(kind: str, queue: str | None) -> Reports:
    """Ask the database, as long as that may take."""
    arguments = connection_of(read_secret("FAIRLINE_DATABASE_URL"))
    arguments["options"] = role_option(DatabaseRole(f"fairline_{kind}"))
    asked = {"kind": kind, "host": f"@{socket.gethostname()}:", "queue": queue}
    with (
        psycopg2.connect(**arguments) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute(READ_REPORTS, asked)
        (row,) = cursor.fetchall()
        return Reports(*row)


def read_in_time(kind: str, queue: str | None) -> Reports | None:
    """The reports, or None if the database does not answer."""
    found: list[Reports] = []

    def read() -> None:
        try:
            found.append(read_reports(kind, queue))
        except (psycopg2.Error, ValueError) as error:
            print(error, file=sys.stderr)

    # libpq has no limit for a server that is there and silent.
    reader = threading.Thread(target=read, daemon=True)
    reader.start()
    reader.join(ANSWER_SECONDS)
    return found[0] if found else None


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m models.alive")
    parser.add_argument("kind", choices=("worker", "scheduler"))
    parser.add_argument("queue", nargs="?")
    parser.add_argument("--hung", action="store_true", help="fail only if a restart would help")
    parser.add_argument(
        "--starting", action="store_true", help="pass also while the database does not answer"
    )
    asked = parser.parse_args()
    reports = read_in_time(asked.kind, asked.queue)
    if asked.hung:
        healthy = reports is None or reports.lately or not reports.anybody
    else:
        healthy = asked.starting if reports is None else reports.alive
    sys.exit(0 if healthy else f"no {asked.kind} reports from here")


if __name__ == "__main__":
    main()
