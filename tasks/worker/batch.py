"""Runs the short jobs of one message concurrently, on as few threads as they need."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from models.jobs.claim import Claim


class Batch:
    """Short jobs of one message.

    Each runner, before it takes a job, wakes one more if jobs are left. Jobs that end in a moment
    are all done before the second runner wakes; jobs that wait spread over the slots.
    """

    def __init__(
        self,
        claims: tuple[Claim, ...],
        execute: Callable[[Claim], None],
        helpers: ThreadPoolExecutor,
    ) -> None:
        self._left = deque(claims)
        self._unfinished = len(claims)
        self._counting = threading.Lock()
        self._finished = threading.Event()
        self._execute = execute
        self._helpers = helpers

    def run(self) -> None:
        """Run them; returns when all have ended."""
        self._take_all()
        self._finished.wait()

    def _take_all(self) -> None:
        helped = False
        while True:
            try:
                claim = self._left.popleft()
            except IndexError:
                return
            if self._left and not helped:
                helped = True
                self._helpers.submit(self._take_all)
            try:
                self._execute(claim)
            finally:
                with self._counting:
                    self._unfinished -= 1
                    if not self._unfinished:
                        self._finished.set()
