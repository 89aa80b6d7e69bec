"""Processes that run moves, to be killed with SIGKILL at any moment."""

from __future__ import annotations

import math
import multiprocessing
import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from multiprocessing.context import ForkServerProcess

from tests.support.moving_cells import run_mover

#: A process that imports what they need, and forks them from then on.
PROCESSES = multiprocessing.get_context("forkserver")
PROCESSES.set_forkserver_preload([run_mover.__module__])
#: A mover is given up so soon: some are killed every second.
LEASE_SECONDS = 0.5


class MoverProcesses:
    """Some movers; one that was killed is replaced by another."""

    def __init__(self, registry_url: str, count: int) -> None:
        self._registry_url = registry_url
        self._number = 0
        self._processes = [self._start() for _ in range(count)]
        self.kills = 0

    def _start(self) -> ForkServerProcess:
        self._number += 1
        asked = (self._registry_url, f"mover {self._number}", LEASE_SECONDS)
        process = PROCESSES.Process(target=run_mover, args=asked, daemon=True)
        process.start()
        return process

    def kill(self, place: int) -> None:
        """Kill one, and start the next."""
        victim = self._processes[place]
        assert victim.pid is not None
        assert victim.is_alive(), "a mover has ended by itself"
        os.kill(victim.pid, signal.SIGKILL)
        victim.join()
        self.kills += 1
        self._processes[place] = self._start()

    def close(self) -> None:
        for process in self._processes:
            process.kill()
            process.join()


@contextmanager
def killed_movers(
    registry_url: str,
    *,
    count: int,
    seed: int,
    pause: tuple[float, float],
    seconds: float = math.inf,
) -> Iterator[MoverProcesses]:
    """Movers of which one is killed after every pause, at random, for so long."""
    chance, until = random.Random(seed), time.monotonic() + seconds
    movers, stop = MoverProcesses(registry_url, count), threading.Event()

    def kill() -> None:
        while not stop.wait(chance.uniform(*pause)) and time.monotonic() < until:
            movers.kill(chance.randrange(count))

    killer = threading.Thread(target=kill, name="killer", daemon=True)
    killer.start()
    try:
        yield movers
    finally:
        stop.set()
        killer.join()
        movers.close()
