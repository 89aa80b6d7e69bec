"""Logging: one line a record, time in UTC, to standard error.

``FAIRLINE_LOG_FORMAT`` is ``plain``, for people, or ``json``: an object a line, with the ids of
the job or the request in whose course it was written, as far as they are known. What a job says
with ``ctx.log`` carries its ids in both.

Not guaranteed: ids in threads that a job starts by itself, but for those of ``ctx.log``.
"""

from __future__ import annotations

import logging
import os
import sys
import time
from typing import Any, Literal

import orjson

from app.config import settings
from app.log_ids import OF_RECORDS, ids_of

FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"
SECONDS = "%Y-%m-%dT%H:%M:%S"


class PlainLines(logging.Formatter):
    """Lines for people."""

    def __init__(self) -> None:
        super().__init__(FORMAT, SECONDS)
        self.converter = time.gmtime

    def formatMessage(self, record: logging.LogRecord) -> str:
        line = super().formatMessage(record)
        if hasattr(record, "job_id"):  # a job said it through its context
            ids = ((name, getattr(record, name, None)) for name in OF_RECORDS)
            line += "".join(f" {name}={value}" for name, value in ids if value is not None)
        return line


class JsonLines(logging.Formatter):
    """Lines for machines."""

    def __init__(self) -> None:
        super().__init__()
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "time": f"{self.formatTime(record, SECONDS)}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            "process": record.process,
            **ids_of(record),
        }
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        elif record.exc_text:
            line["exception"] = record.exc_text
        if record.stack_info:
            line["stack"] = record.stack_info
        try:
            return orjson.dumps(line, default=str).decode()
        except orjson.JSONEncodeError:  # half a character
            whole = {name: whole_text(value) for name, value in line.items()}
            return orjson.dumps(whole).decode()


def whole_text(value: object) -> str:
    """What it says, without what no encoding can write."""
    return str(value).encode(errors="replace").decode()


def configure_logging(level: Any = None) -> None:
    """Set up the root logger; ``level`` is a name or a number, else FAIRLINE_LOG_LEVEL."""
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(lines_of(settings().log_format))
    chosen = level or os.environ.get("FAIRLINE_LOG_LEVEL", "info")
    if isinstance(chosen, str):
        chosen = chosen.upper()
    logging.basicConfig(level=chosen, handlers=[handler], force=True)
    # What jobs say is for their authors, however quiet the platform is told to be.
    logging.getLogger("fairline.job").setLevel(logging.INFO)


def lines_of(log_format: Literal["plain", "json"]) -> logging.Formatter:
    """The formatter of that name."""
    return JsonLines() if log_format == "json" else PlainLines()
