"""Periodic work of a background thread, which survives errors.

An unavailable state store is logged once; the work is tried again after the interval.
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
    """Do ``work`` periodically until ``closed``; ``away`` is logged if the store is unavailable."""
    logged = False
    while not closed.wait(seconds):
        try:
            work()
            logged = False
        except StateStoreError as error:
            if not logged:
                logger.warning("%s: %s", away, error)
            logged = True
        except Exception:  # one bad row must not end the thread
            logger.exception("background work failed")
