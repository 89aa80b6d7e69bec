"""gunicorn: the API processes. Workers are green; each holds thousands of connections.

The master imports the application once and forks: its workers share the memory of all code, and
start in no time. What belongs to one process, connections and threads, is made after the fork.
For new code the master has to be started again: SIGHUP replaces workers, by the same code.
"""

from __future__ import annotations

from gevent import monkey

from app.entry_points import read_once

read_once()
# Before all other imports: kombu, for one, keeps the sleep that it finds. Not what the master
# forks, reaps and waits for signals with; its workers patch these too.
monkey.patch_all(os=False, queue=False, signal=False)

# ruff: noqa: E402
import gc
import os
import resource
import secrets
import signal
import threading
import warnings
from types import FrameType
from typing import Any

from app.config import settings

_settings = settings()
warnings.filterwarnings("ignore", "Patching more than once", monkey.MonkeyPatchWarning)

# An IPv6 address in brackets, or gunicorn would take its last part for the port.
_host = f"[{_settings.host}]" if ":" in _settings.host else _settings.host
bind = f"{_host}:{_settings.port}"
workers = _settings.api_workers
# gunicorn's "gevent" with a fast path for plain requests.
worker_class = "app.server.worker.LeanWorker"
# A few more than are served, so that those beyond get an answer.
worker_connections = _settings.max_connections + 200
backlog = 4096
# The C parser has no wheel for Linux and would need a compiler. Plain requests take the fast path,
# so gunicorn's parser in Python reads only the rare ones.
http_parser = "python"
keepalive = 75
graceful_timeout = 10
timeout = 30
accesslog = None
logger_class = "app.server.gunicorn_hooks.ServerLog"
loglevel = "info"
# Heartbeats of gunicorn's own go to memory, not to a disk that may stall.
worker_tmp_dir = "/dev/shm"
# The socket would lie in the user's home folder, shared by every stack of the machine.
control_socket_disable = True


def on_starting(server: Any) -> None:
    """Runs once, before anything is forked."""
    # What comes by a Unix socket, whose address is not a tuple, is never taken for a local caller.
    _settings.check_addresses([each[0] for each in server.address if isinstance(each, tuple)])
    # What the processes behind this port have in common: see models/presence.py.
    os.environ["FAIRLINE_INSTANCE"] = f"api:{secrets.token_hex(6)}"
    # Every connection is an open file; the customary 1,024 are soon spent on event streams.
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 2 * worker_connections
    if hard != resource.RLIM_INFINITY:
        wanted = min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    import_application()


def import_application() -> None:
    """Import all that a worker needs, into memory that a collection of garbage does not touch."""
    from app.console.assets import all_assets
    from app.server.factory import api_blueprints

    if _settings.registry_url:
        import app.server.cells  # noqa: F401
    list(api_blueprints())
    all_assets()
    gc.collect()
    gc.freeze()


def pre_request(worker: Any, req: Any) -> None:
    """Runs before each request."""
    if req.path.endswith("/events"):
        # When a stream has ended nothing more is asked on its connection; an idle one would
        # only use up the time that a process has to stop in.
        req.force_close()


def post_worker_init(worker: Any) -> None:
    """Runs in each worker, patched and with the application loaded."""
    from app.server.factory import begin_serving
    from app.server.gunicorn_hooks import replace_error_pages

    replace_error_pages()
    bound_connections(worker)
    worker.fairline_stop = threading.Event()
    begin_serving(worker.wsgi, worker.fairline_stop)
    end_streams_on_stop(worker)


def bound_connections(worker: Any) -> None:
    """Give the process its limits of connections: as many as it has files for, and 200."""
    from app.server.connections import ClientSocket, Connections
    from app.server.strict_request import StrictRequest

    StrictRequest.head_seconds = _settings.head_seconds
    ClientSocket.write_seconds = _settings.write_seconds
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    most = _settings.max_connections
    if files != resource.RLIM_INFINITY:
        most = max(1, min(most, files - 200))
    worker.connections = Connections(most, _settings.max_connections_per_address)


def end_streams_on_stop(worker: Any) -> None:
    """Streams never end by themselves: on SIGTERM they must, for which gunicorn has no hook."""
    import gevent

    from app.server.factory import stream_closers

    def stop(sig: int, frame: FrameType | None) -> None:
        # Outside of the handler, which may have interrupted whoever holds a lock.
        for close in stream_closers(worker.wsgi):
            gevent.spawn(close)
        worker.handle_exit(sig, frame)

    signal.signal(signal.SIGTERM, stop)
    signal.siginterrupt(signal.SIGTERM, False)


def worker_exit(server: Any, worker: Any) -> None:
    """Runs in each worker as it ends."""
    stop = getattr(worker, "fairline_stop", None)
    if stop is not None:
        from app.server.factory import end_serving

        end_serving(worker.wsgi, stop)
