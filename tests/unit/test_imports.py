"""What the processes import: no more than they use, and under gevent in the right order."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

#: Needed only where something is configured, or by other commands.
RARE = {
    "sqlalchemy.orm",
    "boto3",
    "botocore",
    "cryptography",
    "authlib",
    "joserfc",
    "httpx2",
    "plotly",
    "anthropic",
    "opentelemetry",
    "alembic",
    "rich",
    "locust",
}
#: By the module that a process runs: what it must do without.
WITHOUT = {
    "app.server.factory": RARE | {"flower", "tornado"},
    "app.scheduler.__main__": RARE | {"flower", "tornado", "flask", "jinja2"},
    # RabbitMQ, for which the start of a stack waits longest, begins when these are imported.
    "app.stack.__main__": (RARE - {"rich"}) | {"sqlalchemy", "celery", "flask", "gevent"},
    "app.worker, celery.bin.worker, app.celery": RARE | {"flower", "tornado", "flask", "jinja2"},
}


def output_of(script: str) -> str:
    done = subprocess.run(
        (sys.executable, "-c", script), capture_output=True, text=True, cwd=ROOT, check=True
    )
    return done.stdout.strip()


@pytest.mark.parametrize("modules", WITHOUT)
def test_a_process_imports_what_it_uses(modules: str) -> None:
    script = f"import sys, {modules}\nprint(sorted({WITHOUT[modules]!r} & sys.modules.keys()))"
    assert output_of(script) == "[]"


def test_the_command_that_starts_a_scheduler_builds_no_api() -> None:
    script = (
        "import sys, app\n"
        "assert 'scheduler' in app.application.cli.commands\n"
        "print('app.server.factory' in sys.modules)"
    )
    assert output_of(script) == "False"


def test_the_server_s_master_is_patched_before_it_imports_the_application() -> None:
    # kombu keeps the sleep that it found: one that blocks would stop all requests of a process.
    script = (
        "import runpy\n"
        "configured = runpy.run_path('gunicorn.conf.py')\n"
        "configured['import_application']()\n"
        "import kombu.utils.functional, gc, os, queue, sys\n"
        "assert 'app.api.routes.jobs' in sys.modules and gc.get_freeze_count() > 100_000\n"
        "print(kombu.utils.functional.sleep.__module__.split('.')[0],\n"
        # What the master forks and waits for signals with is not.
        "      os.fork.__module__, queue.SimpleQueue.__module__)"
    )
    assert output_of(script) == "gevent posix _queue"


def test_nothing_is_connected_or_running_before_the_fork() -> None:
    script = (
        "import runpy, threading\n"
        "runpy.run_path('gunicorn.conf.py')['import_application']()\n"
        "from app.celery import celery\n"
        # Which of several brokers is tried first is each process's own choice.
        "print(threading.active_count(), celery.configured)"
    )
    assert output_of(script) == "1 False"
