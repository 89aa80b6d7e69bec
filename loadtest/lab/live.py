"""What is shown while an experiment runs: a bar with its step, and the figures of the second."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn
from rich.text import Text

#: The bar waits here for an experiment that takes longer than it said.
ALMOST = 0.99


class LiveLine:
    """A bar by the clock; without a terminal, a line for each step."""

    def __init__(self, console: Console, title: str, seconds: float) -> None:
        self._console = console
        self._title = title
        self._seconds = max(1.0, seconds)
        self._began = time.monotonic()
        self._figures = ""
        self._progress = Progress(
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[step]}"),
            console=console,
            auto_refresh=False,
        )
        self._task = self._progress.add_task(title, total=self._seconds, step="")
        self._live = Live(
            console=console, get_renderable=self._draw, refresh_per_second=4, transient=True
        )

    def __enter__(self) -> Self:
        self._console.print(
            f"[bold]{self._title}[/], about {self._seconds / 60:.1f} min", highlight=False
        )
        if self._console.is_terminal:
            self._live.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._live.stop()

    def step(self, name: str) -> None:
        """A new step begins."""
        self._figures = ""
        self._progress.update(self._task, step=name)
        if not self._console.is_terminal:
            self._console.print(f"  {self._elapsed():>5.0f} s  {name}", highlight=False)

    def figures(self, text: str) -> None:
        """The figures of this second."""
        self._figures = text

    def _draw(self) -> RenderableType:
        done = min(self._elapsed(), ALMOST * self._seconds)
        self._progress.update(self._task, completed=done)
        below = Text(f"  {self._figures}", style="dim", no_wrap=True, overflow="ellipsis")
        return Group(self._progress, below)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began
