"""Bounds the logs: one file a process and one older file beside it.

A log is copied and emptied in place, because its writer holds it open (for appending). Lines
written between the copy and the emptying are lost.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

MAX_BYTES = 20 * 1024 * 1024
LOOK_SECONDS = 10.0


class LogRotation:
    """Empties logs that have become too large."""

    def __init__(self, folder: Path, max_bytes: int = MAX_BYTES) -> None:
        self.folder = folder
        self.max_bytes = max_bytes
        self._due_at = 0.0

    def run_once(self, now: float) -> None:
        """Look at every log, unless the last look was a moment ago."""
        if now < self._due_at:
            return
        self._due_at = now + LOOK_SECONDS
        for log in self.folder.glob("*.log"):
            if log.stat().st_size > self.max_bytes:
                shutil.copyfile(log, log.with_suffix(".log.1"))
                os.truncate(log, 0)
