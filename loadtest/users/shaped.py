"""The shapes, as locust knows them: how many users there should be at each moment.

If only submitters run, a shape is that of their arrivals, and their number is merely large enough;
otherwise it is that of the users.
"""

from __future__ import annotations

import logging
import math
from typing import Any, ClassVar

from locust import LoadTestShape
from locust.runners import MasterRunner

from loadtest.shapes import (
    NAMES,
    BadShape,
    Stretch,
    forever,
    highest,
    level_at,
    named,
    parse,
    share,
    total_seconds,
)
from loadtest.users.submitter import GRACE_SECONDS, Submitter

logger = logging.getLogger("fairline")
#: How long submissions may take before the next ones find no free submitter, and are late.
PATIENCE_SECONDS = 10.0
MOST_SUBMITTERS = 2_000
HALF = 0.5


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
        """Up to this level."""
        return named(type(self).__name__.lower(), level)

    def tick(self) -> tuple[int, float] | None:
        """How many users there should be now, all at once; none when it is over."""
        try:
            return self.now()
        except BadShape as error:
            # From the web page, after everything was started.
            logger.error("--shape: %s", error)
            return None

    def now(self) -> tuple[int, float] | None:
        """The same, if the shape is one."""
        options = self.environment.parsed_options
        # Locust asks once a second: what holds in the middle of it.
        second = HALF + self.get_run_time()  # type: ignore[no-untyped-call]  # locust's own
        bound = options.run_time or math.inf
        # A master spreads the users over its workers by itself.
        master = isinstance(self.runner, MasterRunner)
        part, parts = (0, 1) if master else (options.part, options.parts)
        if only_submitters(self.environment):
            stretches = self.stretches(options.rate)
            # They say themselves when all was answered; this is for when they cannot.
            if second > min(bound, total_seconds(stretches) + 2 * GRACE_SECONDS):
                return None
            users = hands(highest(stretches) / parts)
        else:
            stretches = self.stretches(options.num_users)
            if second > min(bound, total_seconds(stretches)):
                return None
            users = share(level_at(stretches, second), part, parts)
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
            return forever(level)
        return named(text, level) if text in NAMES else parse(text)


def only_submitters(environment: Any) -> bool:
    """Whether nobody else takes part."""
    return list(environment.user_classes) == [Submitter]


def hands(rate: float) -> int:
    """Submitters enough for so many arrivals a second."""
    return min(MOST_SUBMITTERS, max(1, math.ceil(rate * PATIENCE_SECONDS)))
