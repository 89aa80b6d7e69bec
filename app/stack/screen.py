"""Terminal output of ``make up``: a spinner and colours on a terminal, plain lines elsewhere.

A terminal that went away is not an error: the stack keeps running. Nor is one that was stopped with
Ctrl-S: what happens meanwhile is shown later.
"""

from __future__ import annotations

import select
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.table import Table

KEPT_LINES = 1000


class Screen:
    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)
        #: What the terminal has not taken yet; the oldest lines go first.
        self._kept: deque[str] = deque(maxlen=KEPT_LINES)

    @contextmanager
    def step(self, title: str, after: str = "") -> Iterator[None]:
        """A step that takes a while."""
        started = time.monotonic()
        if self.console.is_terminal:
            with self.console.status(title):
                yield
        else:
            self.line(f"  … {title}")
            yield
        seconds = time.monotonic() - started
        self.line(f"  [green]✓[/] {title} [dim]{after} {seconds:.1f} s[/]")

    def line(self, text: str = "") -> None:
        """One line, with rich's markup."""
        with suppress(OSError):
            self.console.print(text)

    def plain(self, text: str) -> None:
        """Text without markup, such as a log."""
        with suppress(OSError):
            self.console.print(text, markup=False)

    def event(self, text: str) -> None:
        """Something that happened while the stack runs."""
        self.offer(f"{time.strftime('%H:%M:%S')} {text}")

    def offer(self, text: str) -> None:
        """Text without markup from a process that must not wait for its terminal.

        What is not taken now is offered again before the next such text.
        """
        self._kept.append(text)
        while self._kept and self._takes_text():
            self.plain(self._kept.popleft())

    def _takes_text(self) -> bool:
        try:
            return bool(select.select([], [self.console.file], [], 0)[1])
        except (OSError, ValueError, TypeError):  # closed, or no file that one would wait for
            return True

    def processes(self, rows: list[dict[str, Any]]) -> None:
        grid = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("process", "state", "pid", "up", "restarts"):
            grid.add_column(column, justify="left" if column in ("process", "state") else "right")
        for row in rows:
            pid, up = row["pid"] or "", row["up_seconds"]
            grid.add_row(row["name"], row["state"], str(pid), f"{up:.0f} s", str(row["restarts"]))
        with suppress(OSError):
            self.console.print(grid)
