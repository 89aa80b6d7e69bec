"""Logging: time in UTC, to standard error, as ``plain`` lines for people or as ``json``.

Further lines of a plain record are indented and control characters are escaped, so that no message
can pass for another record. Not guaranteed: ids in threads that a job starts itself, except for
those of ``ctx.log``.
"""

from __future__ import annotations

import logging
import os
import re
import sys
import time
from typing import Any, Literal, TextIO

import orjson

from app.config import settings
from app.log_ids import OF_RECORDS, ids_of
from tasks.process import native_rlock

FORMAT = "%(asctime)s.%(msecs)03dZ %(levelname)s %(name)s %(message)s"
SECONDS = "%Y-%m-%dT%H:%M:%S"
#: Of further lines of a record.
INDENT = "    "
#: Moves the cursor, ends a line for some readers, or reverses the order of what follows.
_UNSEEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


class PlainLines(logging.Formatter):
    """Lines for people: a record's first line has its ids, the others are indented."""

    def __init__(self) -> None:
        super().__init__(FORMAT, SECONDS)
        self.converter = time.gmtime

    def format(self, record: logging.LogRecord) -> str:
        first, *rest = visible(super().format(record)).split("\n")
        if hasattr(record, "job_id"):  # written by ``ctx.log``
            ids = ((name, getattr(record, name, None)) for name in OF_RECORDS)
            first += "".join(f" {name}={value}" for name, value in ids if value is not None)
        return f"\n{INDENT}".join([first, *rest])


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
        except orjson.JSONEncodeError:  # a lone surrogate
            encoded = {name: str(value).encode(errors="replace") for name, value in line.items()}
            return orjson.dumps({name: text.decode() for name, text in encoded.items()}).decode()


def visible(text: str) -> str:
    """The text with control characters as they are written in Python."""
    return _UNSEEN.sub(escaped, text)


def escaped(found: re.Match[str]) -> str:
    """A character as Python would write it."""
    return ascii(found[0])[1:-1]


class StderrHandler(logging.StreamHandler[TextIO]):
    """Writes to stderr, also from the threads beneath gevent's greenlets."""

    def createLock(self) -> None:
        super().createLock()  # notes it for a forked process, which frees the lock
        self.lock = native_rlock()


def configure_logging(level: Any = None) -> None:
    """Set up the root logger; FAIRLINE_LOG_LEVEL overrides ``level``, a name or a number.

    Celery always passes a level and does not say whether it was given by the user.
    """
    handler = StderrHandler(sys.stderr)
    handler.setFormatter(lines_of(settings().log_format))
    chosen = os.environ.get("FAIRLINE_LOG_LEVEL") or level or "info"
    if isinstance(chosen, str):
        chosen = chosen.upper()
    logging.basicConfig(level=chosen, handlers=[handler], force=True)
    # Job logs are for their authors, whatever the level of the platform.
    logging.getLogger("fairline.job").setLevel(logging.INFO)
    # It logs that a pool of connections was made anew, at each request to a cell that is away.
    logging.getLogger("sqlalchemy.pool").setLevel(logging.WARNING)


def lines_of(log_format: Literal["plain", "json"]) -> logging.Formatter:
    return JsonLines() if log_format == "json" else PlainLines()
