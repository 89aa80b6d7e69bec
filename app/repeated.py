"""Work of a background thread, again and again, whatever happens to it.

A state store that is away is told of once; the work is tried again at its next turn.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from models.store.errors import StateStoreError


def repeat(
    work: Callable[[], object],
    closed: threading.Event,
    seconds: float,
    logger: logging.Logger,
    away: str,
) -> None:
    """Do ``work`` every so many seconds until ``closed``; ``away`` says what holds meanwhile."""
    told = False
    while not closed.wait(seconds):
        try:
            work()
            told = False
        except StateStoreError as error:
            if not told:
                logger.warning("%s: %s", away, error)
            told = True
        except Exception:  # one row's trouble must not end the thread
            logger.exception("a turn failed")
