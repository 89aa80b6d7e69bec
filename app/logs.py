"""Logging: one line a record, time in UTC, to standard error."""

from __future__ import annotations

import logging
import os
import time
from typing import Any

FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"


def configure_logging(level: Any = None) -> None:
    """Set up the root logger; ``level`` is a name or a number, else FAIRLINE_LOG_LEVEL."""
    formatter = logging.Formatter(FORMAT, "%Y-%m-%dT%H:%M:%S")
    formatter.converter = time.gmtime
    handler = logging.StreamHandler()
    handler.setFormatter(formatter)
    chosen = level or os.environ.get("FAIRLINE_LOG_LEVEL", "info")
    if isinstance(chosen, str):
        chosen = chosen.upper()
    logging.basicConfig(level=chosen, handlers=[handler], force=True)
    # What jobs say is for their authors, however quiet the platform is told to be.
    logging.getLogger("fairline.job").setLevel(logging.INFO)
