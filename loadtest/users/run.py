"""One run of locust from its start to its end, in one process or in several.

Several processes come about in two ways: as parts of a `loadtest.generator`, which know nothing
of each other but a folder; or as locust's own master and workers, by hand.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from pathlib import Path
from typing import Any

import gevent
from locust import events
from locust.runners import MasterRunner, WorkerRunner

from loadtest.shapes import BadShape, total_seconds, written
from loadtest.users import submitter
from loadtest.users.options import add_options
from loadtest.users.shaped import Shaped, only_submitters
from loadtest.users.wire import Target

logger = logging.getLogger("fairline")
#: For the other processes of a generator to start.
MEET_SECONDS = 30.0
#: From the last start of a process to the first arrival.
LEAD_SECONDS = 0.4
#: From a master's word to the first arrival.
MASTER_LEAD_SECONDS = 1.0
CONNECT_SECONDS = 5.0
BROKEN, MISUSED, UNREACHABLE = 1, 2, 3


def listen() -> None:
    """Take part in locust's runs."""
    hooks: Any = events
    hooks.init_command_line_parser.add_listener(add_options)
    hooks.init.add_listener(prepare)
    hooks.test_start.add_listener(begin)
    hooks.test_stop.add_listener(end)
    hooks.quitting.add_listener(judge)


def prepare(environment: Any, **_: object) -> None:
    """Choose the shape that was asked for (locust alone takes the first) and meet the others."""
    options, runner = environment.parsed_options, environment.runner
    environment.shape_class = None
    if options.shape or (options.headless and only_submitters(environment)):
        shape = environment.available_shape_classes["Custom"]
        shape.runner = runner
        try:
            shape.stretches(1.0)
        except BadShape as error:
            logger.error("--shape: %s", error)
            sys.exit(MISUSED)
        environment.shape_class = shape
    if options.record and options.parts > 1:
        options.begin_at = meet(Path(options.record), options.part, options.parts)
    if not isinstance(runner, WorkerRunner):
        runner.register_message("arrivals_over", Ending(environment))


def meet(folder: Path, part: int, parts: int) -> float:
    """Wait until all processes are here; when all of them begin, in seconds since the epoch."""
    (folder / f"ready-{part}").touch()
    deadline = time.monotonic() + MEET_SECONDS
    while len(here := list(folder.glob("ready-*"))) < parts:
        if time.monotonic() > deadline:
            logger.error("only %d of %d processes started", len(here), parts)
            sys.exit(BROKEN)
        gevent.sleep(0.02)
    return max(file.stat().st_mtime for file in here) + LEAD_SECONDS


class Ending:
    """Ends the run when every process says that its arrivals are over."""

    def __init__(self, environment: Any) -> None:
        self._environment = environment
        self._over = 0

    def __call__(self, **_: object) -> None:
        runner = self._environment.runner
        self._over += 1
        if self._over < (runner.worker_count if isinstance(runner, MasterRunner) else 1):
            return
        self._over = 0
        # Not from here: the greenlet that brought the message is one of those that are stopped.
        gevent.spawn(runner.quit if self._environment.parsed_options.headless else runner.stop)


def begin(environment: Any, **_: object) -> None:
    """The clock of the submitters starts, here or in the workers of this master."""
    options, runner = environment.parsed_options, environment.runner
    if not isinstance(runner, WorkerRunner):
        options.arrivals = arrivals(environment)
    if isinstance(runner, MasterRunner):
        # Options travel to the workers with the order to spawn users, which comes next.
        options.parts = max(1, runner.worker_count)
        options.begin_at = time.time() + MASTER_LEAD_SECONDS
        return
    if isinstance(runner, WorkerRunner):
        options.part = runner.worker_index % options.parts
    if reach(environment) and submitter.Submitter in environment.user_classes:
        submitter.begin_round(environment)


def arrivals(environment: Any) -> str:
    """The shape of the submitters' arrivals; empty if they come at a rate without end."""
    shape = environment.shape_class
    if not isinstance(shape, Shaped) or not only_submitters(environment):
        return ""
    stretches = shape.stretches(environment.parsed_options.rate)
    return "" if math.isinf(total_seconds(stretches)) else written(stretches)


def reach(environment: Any) -> bool:
    """Whether there is somebody to send to; a run without a web page ends if there is not."""
    try:
        Target(environment.host or "").connect(CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        logger.error("cannot reach %s: %s", environment.host, error)
        if environment.parsed_options.headless:
            environment.process_exit_code = UNREACHABLE
            gevent.spawn(environment.runner.quit)
            return False
    return True


def end(environment: Any, **_: object) -> None:
    """All users have stopped."""
    submitter.end_round(environment)


def judge(environment: Any, **_: object) -> None:
    """A run whose users broke is no measurement."""
    broken = environment.runner.exceptions.values()
    if broken and environment.process_exit_code is None:
        environment.process_exit_code = BROKEN
        for each in broken:
            logger.error("%d times: %s\n%s", each["count"], each["msg"], each["traceback"])
