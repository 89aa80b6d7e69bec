"""gunicorn: the API processes. Workers are green; each holds thousands of connections."""

from __future__ import annotations

import threading
from typing import Any

from app.config import settings

_settings = settings()

bind = f"{_settings.host}:{_settings.port}"
workers = _settings.api_workers
worker_class = "gevent"
worker_connections = 10_000
backlog = 4096
# Parsing in Python is a quarter of the cost of a small request.
http_parser = "fast"
keepalive = 75
graceful_timeout = 10
timeout = 30
accesslog = None
loglevel = "info"
# Heartbeats of gunicorn's own go to memory, not to a disk that may stall.
worker_tmp_dir = "/dev/shm"
# The socket would lie in the user's home folder, shared by every stack of the machine.
control_socket_disable = True


def post_worker_init(worker: Any) -> None:
    """Runs in each worker, patched and with the application loaded."""
    from app.api.wire import speak_problems
    from app.factory import begin_serving

    speak_problems()
    worker.fairline_stop = threading.Event()
    begin_serving(worker.wsgi, worker.fairline_stop)


def worker_exit(server: Any, worker: Any) -> None:
    """Runs in each worker as it ends."""
    stop = getattr(worker, "fairline_stop", None)
    if stop is not None:
        from app.factory import end_serving

        end_serving(worker.wsgi, stop)
