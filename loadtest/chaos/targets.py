"""The processes that a target stands for, found anew for each hit."""

from __future__ import annotations

import signal
from contextlib import suppress

import psutil
from sqlalchemy import Engine

from loadtest.chaos.stack import Stack
from models.errors import StateStoreError
from models.session import connection

#: How each is asked to stop; PostgreSQL would wait for its clients after a SIGTERM.
STOP_SIGNALS = {"postgres": signal.SIGINT}
READ_BUSY = "SELECT DISTINCT worker FROM jobs WHERE status = 'running' AND worker IS NOT NULL"
NAMES = {"short": "worker-short-", "medium": "worker-medium-", "long": "worker-long-"}


def victims(stack: Stack, target: str) -> list[psutil.Process]:
    """Living processes of that kind, in a stable order; none between two lives."""
    with suppress(psutil.Error, KeyError):
        pids = stack.pids()
        match target:
            case "api":
                return children(pids["api"])
            case "api-leader":
                return [psutil.Process(pids["api"])]
            case "long-child":
                return [child for pid in named(pids, "worker-long-") for child in children(pid)]
            case "postgres-backend":
                return [one for one in children(pids["postgres"]) if serves_a_client(one)]
            case "rabbitmq" | "postgres":
                return [psutil.Process(pids[target])]
            case "scheduler":
                return [psutil.Process(pid) for pid in named(pids, "scheduler-")]
            case _:
                return [psutil.Process(pid) for pid in named(pids, NAMES[target])]
    return []


def family(leader: psutil.Process, target: str) -> list[psutil.Process]:
    """Who is hit together: a server frozen without its children would go on working."""
    if target in ("api", "long-child", "postgres-backend"):
        return [leader]
    with suppress(psutil.Error):
        return [leader, *leader.children(recursive=True)]
    return []


def busy_first(engine: Engine, found: list[psutil.Process]) -> list[psutil.Process]:
    """Those who run a job, or whose children do: there is more to lose. All, if nobody does."""
    try:
        with connection(engine) as taken:
            busy = {int(row[0].rpartition(":")[2]) for row in taken.exec_driver_sql(READ_BUSY)}
    except StateStoreError:
        return found
    chosen = []
    for process in found:
        with suppress(psutil.Error):
            if busy & {process.pid, *(child.pid for child in process.children())}:
                chosen.append(process)
    return chosen or found


def named(pids: dict[str, int], prefix: str) -> list[int]:
    """The processes whose names begin so, by name."""
    return [pid for name, pid in sorted(pids.items()) if name.startswith(prefix)]


def children(pid: int) -> list[psutil.Process]:
    """The children of a process, by age."""
    return sorted(psutil.Process(pid).children(), key=lambda child: child.pid)


def serves_a_client(process: psutil.Process) -> bool:
    """Whether it is a backend of PostgreSQL; the others are its household."""
    with suppress(psutil.Error, IndexError):
        return "fairline" in process.cmdline()[0]
    return False
