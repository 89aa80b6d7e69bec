"""``python -m app.stack.fork_server KIND``: forks processes that have their modules imported.

Importing is most of what the start of a process takes. One that is forked here has its modules
already, and shares their memory. Asked by `app.stack.forking` while a stack starts, through a
socket that is this process's standard input; ends with its parent.
"""

from __future__ import annotations

import _socket
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import posix
import runpy
import socket
import sys
from collections.abc import Sequence
from typing import Any

from app.stack.spawn import PR_SET_PDEATHSIG, private_file

#: What workers of both kinds import, and schedulers and the API in great part.
WORKER = (
    *("celery.apps.worker", "celery.bin.worker", "celery.worker.consumer"),
    *("kombu.transport.pyamqp", "sqlalchemy.dialects.postgresql.psycopg2", "psycopg2.extras"),
    *("app.broker.consumer", "app.broker.events", "app.logs", "tasks.entry"),
)
#: What is imported, by kind; those of ``gevent`` into a process that is made cooperative before.
#: Nothing that reads the settings as it is imported: a worker has some that others have not. And no
#: job types: the settings say which there are.
MODULES = {
    "gevent": (
        *WORKER,
        *("celery.concurrency.gevent", "gunicorn.app.wsgiapp", "gunicorn.workers.ggevent"),
        *("app.server.worker", "app.server.wsgi", "app.console.shell", "app.api.routes.*"),
        *("app.scheduler.relief", "app.reads.views", "app.reads.standby"),
    ),
    "plain": (
        *WORKER,
        *("celery.concurrency.prefork", "app.scheduler.service"),
        *("alembic.command", "flask.cli", "app.cli.commands"),
    ),
}
#: Room for the command line of a forked process, which takes the place of this one's.
ROOM = " " * 1000


def main() -> None:
    """Import, then fork whenever asked; in each forked process, become what was asked for."""
    _, kind, _ = sys.argv
    import_modules(kind)
    show_command((sys.executable, "-m", "app.stack.fork_server", kind))
    run(become(serve()))


def import_modules(kind: str) -> None:
    """Import what processes of this kind use."""
    gc.disable()
    if kind == "gevent":
        patch()
    for name in MODULES[kind]:
        module = importlib.import_module(name.removesuffix(".*"))
        if name.endswith("*"):
            for found in pkgutil.iter_modules(module.__path__, f"{module.__name__}."):
                importlib.import_module(found.name)
    gc.collect()
    # What exists now is shared; a collection of garbage would write to it.
    gc.freeze()
    gc.enable()


def patch() -> None:
    """Make this process cooperative, as gunicorn.conf.py does; workers patch the rest."""
    from gevent import monkey

    from app.entry_points import read_once

    read_once()
    monkey.patch_all(os=False, queue=False, signal=False)


def serve() -> int:
    """Fork for each socket that is passed; returns in a forked process, with its socket.

    It is a child of nobody here: its parent is whoever adopts orphans. Neither ``os.fork`` nor
    sockets are gevent's, which would start an event loop.
    """
    asked = _socket.socket(fileno=0)
    while True:
        _, passed, _, _ = socket.recv_fds(asked, 1, 1)  # type: ignore[arg-type]  # it has recvmsg
        if not passed:
            sys.exit()  # the parent needs no more, or has ended
        between = posix.fork()
        if between == 0:
            between = os.getpid()
            if posix.fork():
                os._exit(0)
            asked.detach()  # standard input gets another file
            while os.getppid() == between:
                os.sched_yield()
            return passed[0]
        os.close(passed[0])
        posix.waitpid(between, 0)


def become(answers: int) -> Sequence[str]:
    """Take over session, folder, output and environment that were asked for; the command.

    Only if the parent confirms that it knows the process: one that nobody knows has to end.
    """
    with open(answers, "r+b", buffering=0) as parent:
        if not (line := read_line(parent)):
            os._exit(1)
        asked: dict[str, Any] = json.loads(line)
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, asked["death_signal"])
        if os.getppid() != asked["parent"]:
            os._exit(1)
        os.chdir(asked["cwd"])
        log = private_file(asked["log"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        nothing = os.open(os.devnull, os.O_RDONLY)
        for file, stream in ((nothing, 0), (log, 1), (log, 2)):
            os.dup2(file, stream)
        os.close(nothing)
        os.close(log)
        os.environ.clear()
        os.environ.update(asked["env"])
        show_command(asked["argv"])
        try:
            parent.write(b"%d\n" % os.getpid())
            known = read_line(parent) == b"known\n"
        except OSError:  # the parent has given up
            known = False
        if not known:
            os._exit(1)
    argv: list[str] = asked["argv"]
    return argv


def read_line(source: Any) -> bytes:
    """Up to the end of the line, or of what there is."""
    line = b""
    while not line.endswith(b"\n") and (more := source.read(65536)):
        line += more
    return line


def show_command(argv: Sequence[str]) -> None:
    """Make ``ps`` show this command, as much as there is room for."""
    with open("/proc/self/stat") as file:
        fields = file.read().rpartition(")")[2].split()
    start, end = int(fields[45]), int(fields[46])  # arg_start and arg_end of proc(5)
    if (room := end - start - 1) > 0:
        # The kernel shows a text up to its first NUL if the last byte of the place is none.
        shown = b" ".join(map(os.fsencode, argv))[: room - 1]
        ctypes.memmove(start, shown.ljust(room, b"\0") + b"\1", room + 1)


def run(argv: Sequence[str]) -> None:
    """Run a module or a Python script in this process, as the command line says."""
    sys.orig_argv = list(argv)
    if argv[1:2] == ["-m"]:
        sys.argv = list(argv[2:])
        runpy.run_module(argv[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(argv)
        runpy.run_path(argv[0], run_name="__main__")


if __name__ == "__main__":
    main()
