"""One run of locust from its start to its end, in one process or in several.

Several processes are either parts of a `loadtest.generator`, which share nothing but a folder, or
locust's own master and workers, by hand.
"""

from __future__ import annotations

import logging
import math
import sys
import time
from argparse import ArgumentTypeError
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import gevent
from locust import LoadTestShape, events
from locust.runners import MasterRunner, WorkerRunner

from loadtest import shapes
from loadtest.shapes import NAMED, BadShape, Stretch, highest, total_seconds
from loadtest.users import submitter
from loadtest.users.submitter import GRACE_SECONDS, Submitter
from loadtest.users.wire import Target

HOST = "http://127.0.0.1:8000"


def add_options(parser: Any) -> None:
    """Beside locust's own, of which some get defaults that suit a Fairline on this machine."""
    parser.set_defaults(host=HOST, num_users=20, spawn_rate=5, class_picker=True)
    add = parser.add_argument
    add("--rate", type=above_zero, default=5.0, help="Submitter: submissions per second (5)")
    add(
        "--shape",
        default="",
        help="steps, ramp, spike, soak, or level:seconds and from-to:seconds as in 2:20,0-8:30; "
        "in the web page choose the shape Custom with it",
    )
    add("--key", default="", is_secret=True, env_var="FAIRLINE_KEY", help="API key, if needed")
    add("--path", default="/applications", help="Submitter: where to post")
    add("--letter-bytes", default="", help="Submitter: random length of the letters: 200-20000")
    for name, kind, default, words in (
        ("--record", str, "", "for programs: the folder for the record of what was sent"),
        ("--part", int, 0, "for programs: which of several processes this is"),
        ("--parts", int, 1, "for programs: how many processes share the work"),
        ("--begin-at", float, 0.0, "for programs: when the arrivals start"),
        ("--arrivals", str, "", "for programs: the shape, as the master sends it to its workers"),
    ):
        add(name, type=kind, default=default, include_in_web_ui=False, help=words)


def above_zero(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise ArgumentTypeError(f"{text} is no rate: it must be above 0")
    return value


logger = logging.getLogger("fairline")
#: How long submissions may take before the next ones find no free submitter, and are late.
PATIENCE_SECONDS = 10.0
MOST_SUBMITTERS = 2_000


class Shaped(LoadTestShape):
    """A shape by its own name, up to the rate or the number of users that were asked for."""

    abstract = True
    use_common_options: ClassVar[bool] = True

    @property
    def environment(self) -> Any:
        """Locust's, known once the runner is there."""
        assert self.runner is not None
        return self.runner.environment

    def stretches(self, level: float) -> list[Stretch]:
        return NAMED[type(self).__name__.lower()](level)

    def tick(self) -> tuple[int, float] | None:
        """How many users there should be now, all at once; none when it is over."""
        options = self.environment.parsed_options
        only = only_submitters(self.environment)
        try:
            stretches = self.stretches(options.rate if only else options.num_users)
        except BadShape as error:
            # From the web page, after everything was started.
            logger.error("--shape: %s", error)
            return None
        # Locust calls this once a second: what holds in the middle of it.
        second = 0.5 + self.get_run_time()  # type: ignore[no-untyped-call]  # locust's own
        # Submitters end by themselves when all was answered; this is for when they cannot.
        end = total_seconds(stretches) + (2 * GRACE_SECONDS if only else 0.0)
        if second > min(options.run_time or math.inf, end):
            return None
        # A master spreads the users over its workers by itself.
        master = isinstance(self.runner, MasterRunner)
        part, parts = (0, 1) if master else (options.part, options.parts)
        if only:
            users = submitters_for(highest(stretches) / parts)
        else:
            users = shapes.share(shapes.level_at(stretches, second), part, parts)
        return users, max(1.0, highest(stretches), users)


class Steps(Shaped):
    """Four steps of half a minute."""


class Ramp(Shaped):
    """From nothing, in two minutes."""


class Spike(Shaped):
    """A fifth, then all at once for a quarter of a minute, then a fifth again."""


class Soak(Shaped):
    """70 % for half an hour."""


class Custom(Shaped):
    """As ``--shape`` says; without it always the same."""

    def stretches(self, level: float) -> list[Stretch]:
        """The text's own levels, or up to this one if it is a name."""
        text = self.environment.parsed_options.shape
        if not text:
            return shapes.forever(level)
        return NAMED[text](level) if text in NAMED else shapes.parse(text)


def only_submitters(environment: Any) -> bool:
    return list(environment.user_classes) == [Submitter]


def submitters_for(rate: float) -> int:
    return min(MOST_SUBMITTERS, max(1, math.ceil(rate * PATIENCE_SECONDS)))


#: For the other processes of a generator to start.
MEET_SECONDS = 30.0
#: From the last start of a process to the first arrival.
LEAD_SECONDS = 0.4
#: From a master's start to the first arrival.
MASTER_LEAD_SECONDS = 1.0
CONNECT_SECONDS = 5.0
BROKEN, MISUSED, UNREACHABLE = 1, 2, 3


def listen() -> None:
    hooks: Any = events
    hooks.init_command_line_parser.add_listener(add_options)
    hooks.init.add_listener(prepare)
    hooks.test_start.add_listener(begin)
    hooks.test_stop.add_listener(submitter.end_round)
    hooks.quitting.add_listener(judge)


def prepare(environment: Any, **_: object) -> None:
    """Choose the shape of the options (locust would take the first); wait for other processes."""
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
        runner.register_message("arrivals_over", ending(environment))


def meet(folder: Path, part: int, parts: int) -> float:
    """Wait until all processes have started; when to begin, in seconds since the epoch."""
    (folder / f"ready-{part}").touch()
    deadline = time.monotonic() + MEET_SECONDS
    while len(here := list(folder.glob("ready-*"))) < parts:
        if time.monotonic() > deadline:
            logger.error("only %d of %d processes started", len(here), parts)
            sys.exit(BROKEN)
        gevent.sleep(0.02)
    return max(file.stat().st_mtime for file in here) + LEAD_SECONDS


def ending(environment: Any) -> Callable[..., None]:
    """Ends the run when every process has sent that its arrivals are over."""
    over = 0

    def arrivals_over(**_: object) -> None:
        nonlocal over
        runner = environment.runner
        over += 1
        if over >= (runner.worker_count if isinstance(runner, MasterRunner) else 1):
            over = 0
            # Not from here: the greenlet that brought the message is one of those to be stopped.
            gevent.spawn(runner.quit if environment.parsed_options.headless else runner.stop)

    return arrivals_over


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
    if reach(environment) and Submitter in environment.user_classes:
        submitter.begin_round(environment)


def arrivals(environment: Any) -> str:
    """The shape of the submitters' arrivals; empty if they come at a rate without end."""
    shape = environment.shape_class
    if not isinstance(shape, Shaped) or not only_submitters(environment):
        return ""
    stretches = shape.stretches(environment.parsed_options.rate)
    return "" if math.isinf(total_seconds(stretches)) else shapes.written(stretches)


def reach(environment: Any) -> bool:
    """Whether the server can be reached; a run without a web page ends if not."""
    try:
        Target(environment.host or "").connect(CONNECT_SECONDS).close()
    except (OSError, ValueError) as error:
        logger.error("cannot reach %s: %s", environment.host, error)
        if environment.parsed_options.headless:
            environment.process_exit_code = UNREACHABLE
            gevent.spawn(environment.runner.quit)
            return False
    return True


def judge(environment: Any, **_: object) -> None:
    """A run whose users broke is no measurement."""
    broken = environment.runner.exceptions.values()
    if broken and environment.process_exit_code is None:
        environment.process_exit_code = BROKEN
        for each in broken:
            logger.error("%d times: %s\n%s", each["count"], each["msg"], each["traceback"])
