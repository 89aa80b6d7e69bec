"""Terminal output of ``make up``: a spinner and colours on a terminal, plain lines elsewhere.

A terminal that went away is not an error: the stack keeps running.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console
from rich.table import Table


class Screen:
    def __init__(self, console: Console | None = None) -> None:
        self.console = console or Console(highlight=False, soft_wrap=True)

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
        self.plain(f"{time.strftime('%H:%M:%S')} {text}")

    def processes(self, rows: list[dict[str, Any]]) -> None:
        grid = Table(box=None, pad_edge=False, header_style="dim")
        for column in ("process", "state", "pid", "up", "restarts"):
            grid.add_column(column, justify="left" if column in ("process", "state") else "right")
        for row in rows:
            pid, up = row["pid"] or "", row["up_seconds"]
            grid.add_row(row["name"], row["state"], str(pid), f"{up:.0f} s", str(row["restarts"]))
        with suppress(OSError):
            self.console.print(grid)
