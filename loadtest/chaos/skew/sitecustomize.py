"""Gives some of a stack's Python processes a clock that is wrong by up to an hour.

Python imports this module as it starts if its folder is in ``PYTHONPATH``. The process then
starts over with libfaketime before it; the monotonic clock stays right, as on a real machine
whose date is wrong.
"""

import os
import random
import select
import sys
import time
from glob import glob
from typing import SupportsIndex

#: Seconds by which the clock of this process is wrong.
VARIABLE = "FAIRLINE_CHAOS_SKEW"
LIBRARIES = "/usr/lib/*/faketime/libfaketime.so.1"
MOST_SECONDS = 3600


def start_over() -> None:
    libraries = glob(LIBRARIES)
    # The process manager starts PostgreSQL and RabbitMQ, whose clock is the one that counts.
    manager = "app.stack" in sys.orig_argv
    if not libraries or manager or VARIABLE in os.environ:
        return
    chance = random.SystemRandom()
    skew = chance.choice((0, 0, chance.randint(-MOST_SECONDS, MOST_SECONDS)))
    os.environ[VARIABLE] = str(skew)
    if skew:
        os.environ |= {
            "LD_PRELOAD": libraries[0],
            "FAKETIME": f"{skew:+d}s",
            "FAKETIME_DONT_FAKE_MONOTONIC": "1",
        }
        os.execv(sys.executable, sys.orig_argv)


def sleep(seconds: SupportsIndex | float) -> None:
    """``time.sleep`` by another call of the system: libfaketime spoils the one that Python uses."""
    select.select((), (), (), float(seconds))


start_over()
if "FAKETIME" in os.environ:
    time.sleep = sleep
