"""What is kept of a run for its author: the lines it logged and the traceback of what it raised.

Bounded per run, in memory and in the database: a run that logs without end costs the time of its
own calls. No variables are part of a traceback, and secrets are hidden: see `tasks.worker.texts`.
No lock is taken: the watchdog reads the lines of a run that may be stuck anywhere.
"""

from __future__ import annotations

import logging
import sys
import time
from collections import deque
from datetime import UTC, datetime
from itertools import takewhile
from traceback import StackSummary, TracebackException, walk_stack
from types import FrameType, TracebackType

import orjson

from tasks.worker.texts import BEYOND, plain_text

#: Newest lines that are kept, the characters of each, and the bytes of all.
MOST_LINES = 200
LINE_CHARACTERS = 2_000
LOG_BYTES = 16_384
#: Innermost frames of each traceback, and characters of the whole.
MOST_FRAMES = 30
TRACEBACK_CHARACTERS = 8_000
#: A run that goes on writes its lines again after a quarter of its time so far, this at most.
REST_SECONDS = 30.0
#: Modules that call a job's function: their frames say nothing about the job.
CALLERS = ("tasks.worker.", "tasks.registry")


class RunLog:
    """The newest lines of a run."""

    __slots__ = ("_characters", "_lines", "_written", "_written_at", "count")

    def __init__(self) -> None:
        self._lines: deque[tuple[float, int, str]] = deque()
        self._characters = 0
        #: Lines so far.
        self.count = 0
        #: How many of them the row has, and since when.
        self._written = 0
        self._written_at = 0.0

    def add(self, level: int, message: object) -> None:
        """Keep a line."""
        text = plain_text(message, LINE_CHARACTERS)
        self._lines.append((time.time(), level, text))
        self._characters += len(text)
        self.count += 1
        while len(self._lines) > MOST_LINES or self._characters > LOG_BYTES + LINE_CHARACTERS:
            try:
                self._characters -= len(self._lines.popleft()[2])
            except IndexError:  # other threads of the job log too
                break

    def is_due(self, now: float, ran_seconds: float) -> bool:
        """Whether a run that goes on has lines to be written."""
        rest = min(REST_SECONDS, ran_seconds / 4)
        return self.count > self._written and now - self._written_at >= rest

    def note_written(self, count: int, now: float) -> None:
        """The row has the first ``count`` lines."""
        self._written, self._written_at = count, now

    def document(self) -> tuple[str | None, int]:
        """The newest lines as JSON text, and how many are left out."""
        count, room = self.count, LOG_BYTES
        shown: deque[dict[str, str]] = deque()
        for at, level, message in reversed(self._lines.copy()):
            room -= len(message.encode())
            if room < 0:
                break
            shown.appendleft({"at": moment(at), "level": name_of(level), "message": message})
        if not shown:
            return None, 0
        return orjson.dumps(list(shown)).decode(), max(0, count - len(shown))


def moment(seconds: float) -> str:
    at = datetime.fromtimestamp(seconds, UTC).isoformat(timespec="milliseconds")
    return at.replace("+00:00", "Z")


def name_of(level: int) -> str:
    return logging.getLevelName(level).lower()


def traceback_of(error: BaseException) -> str:
    """The traceback of what a job raised, from the job's own frames on; its end if it is long."""
    try:
        whole = TracebackException(
            type(error), error, own_part(error.__traceback__), limit=-MOST_FRAMES, compact=True
        )
        return bounded("".join(whole.format()))
    except Exception as odd:  # noqa: BLE001 - an error may be odd enough to break even this
        return f"({type(odd).__name__} while formatting the traceback)"


def stack_of(frame: FrameType) -> str:
    """Where a run is that does not end."""
    try:
        own = takewhile(lambda walked: not calls_jobs(walked[0]), walk_stack(frame))
        stack = StackSummary.extract(own, limit=MOST_FRAMES)
        return bounded("".join(["Stack of the run:\n", *reversed(stack.format())]))
    except Exception as odd:  # noqa: BLE001 - it is about to be killed: the rest has to be written
        return f"({type(odd).__name__} while formatting the stack)"


def own_part(trace: TracebackType | None) -> TracebackType | None:
    """The traceback without the frames before the job's; the whole if it has no others."""
    rest = trace
    while rest is not None:
        if not calls_jobs(rest.tb_frame):
            return rest
        rest = rest.tb_next
    return trace


def calls_jobs(frame: FrameType) -> bool:
    """Whether it is one of the frames before the job's."""
    return str(frame.f_globals.get("__name__")).startswith(CALLERS)


def bounded(text: str) -> str:
    """The end of a long text, where it says what was raised; files as they are imported."""
    text = text.rstrip()
    # Twice what is kept, as the names of folders go; a secret that begins before it is far away.
    left_out = max(0, len(text) - 2 * TRACEBACK_CHARACTERS - BEYOND)
    text = plain_text(text[left_out:], len(text))
    for folder in sorted(filter(None, sys.path), key=len, reverse=True):
        text = text.replace(f'File "{folder}/', 'File "')
    cut = max(0, len(text) - TRACEBACK_CHARACTERS)
    left_out += cut
    return f"… {left_out} characters left out …\n{text[cut:]}" if left_out else text
