"""Runs the short jobs of one message concurrently, on as few threads as they need."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

from models.jobs.claim import Claim


def run_batch(
    claims: tuple[Claim, ...], execute: Callable[[Claim], None], helpers: ThreadPoolExecutor
) -> None:
    """Execute all claims; returns when the last has ended.

    Each runner, before it takes a job, wakes one more if jobs are left. Jobs that end in a moment
    are all done before the second runner wakes; jobs that wait spread over the slots.
    """
    left, unfinished = deque(claims), len(claims)
    counting, finished = threading.Lock(), threading.Event()

    def take_all() -> None:
        nonlocal unfinished
        helped = False
        while True:
            try:
                claim = left.popleft()
            except IndexError:
                return
            if left and not helped:
                helped = True
                helpers.submit(take_all)
            try:
                execute(claim)
            finally:
                with counting:
                    unfinished -= 1
                    if not unfinished:
                        finished.set()

    take_all()
    finished.wait()
