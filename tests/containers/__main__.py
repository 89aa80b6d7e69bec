"""``python -m tests.containers``: docker-compose.yml of this commit under a Docker engine.

Builds the image from the Dockerfile, brings every service up as on a machine without a ``.env``,
uses it, scales it, kills a worker, stops it. Keeps the engine and its images in
``~/.cache/fairline-compose`` (``XDG_CACHE_HOME``); removing that folder starts from nothing.
"""

from __future__ import annotations

import fcntl
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from app.stack.screen import Screen
from loadtest.fleet import NotReady
from tests.bare.steps import Failed, check_machine
from tests.bare.tree import CannotEnter, entered, remove_tree
from tests.containers.engine import build_images, docker, leave_network, make_engine
from tests.containers.trial import ComposeTest

REPOSITORY = Path(__file__).parents[2]


def run(cache: Path, screen: Screen) -> None:
    """Everything; raises at the first step that fails."""
    logs = cache / "logs"
    remove_tree(logs)
    logs.mkdir()
    tree = make_engine(cache, logs, screen)
    build_images(tree, REPOSITORY, logs, screen)
    leave_network()
    with entered(tree, as_root=True) as inside, docker(inside, logs / "dockerd.log"):
        ComposeTest(inside, logs, screen).try_everything()


def main() -> int:
    """The command line."""
    screen, began = Screen(), time.monotonic()
    if missing := check_machine("compose-test"):
        screen.plain(f"fairline: {missing}")
        return 1
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda *_: sys.exit(1))  # so that the `finally` blocks run
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "fairline-compose")
    cache.mkdir(parents=True, exist_ok=True, mode=0o755)
    with (cache / "lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            run(cache, screen)
        except BlockingIOError:
            screen.plain(f"fairline: another compose-test is using {cache}")
            return 1
        except (Failed, CannotEnter, NotReady, OSError, subprocess.SubprocessError) as error:
            screen.plain(f"fairline: {error}")
            screen.plain(f"Logs: {cache}/logs, of the containers {cache}/tree/root/containers.log")
            return 1
        except KeyboardInterrupt:
            screen.plain("fairline: interrupted")
            return 1
    took = time.monotonic() - began
    screen.line(f"[bold green]docker compose does what the README says.[/] {took:.0f} s")
    return 0


if __name__ == "__main__":
    sys.exit(main())
