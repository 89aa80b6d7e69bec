"""What is shown while an experiment runs: a bar, the step it is at, the figures of the second."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TaskProgressColumn, TextColumn, TimeElapsedColumn

#: The bar waits here for an experiment that takes longer than it said.
ALMOST = 0.99


class LiveLine:
    """A bar by the clock; without a terminal, a line for each step."""

    def __init__(self, console: Console, title: str, seconds: float) -> None:
        self._console = console
        self._title = title
        self._seconds = max(1.0, seconds)
        self._began = time.monotonic()
        self._progress = Progress(
            TextColumn("[bold]{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TimeElapsedColumn(),
            TextColumn("{task.fields[step]}"),
            TextColumn("[dim]{task.fields[figures]}"),
            console=console,
            transient=True,
            disable=not console.is_terminal,
        )
        self._task = self._progress.add_task(title, total=self._seconds, step="", figures="")

    def __enter__(self) -> Self:
        self._console.print(
            f"[bold]{self._title}[/], about {self._seconds / 60:.1f} min", highlight=False
        )
        self._progress.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        self._progress.stop()

    def step(self, name: str) -> None:
        """A new step begins."""
        if self._console.is_terminal:
            self._update(step=name, figures="")
        else:
            self._console.print(f"  {self._elapsed():>5.0f} s  {name}", highlight=False)

    def figures(self, text: str) -> None:
        """The figures of this second."""
        self._update(figures=text)

    def _update(self, **fields: str) -> None:
        done = min(self._elapsed(), ALMOST * self._seconds)
        self._progress.update(self._task, completed=done, **fields)

    def _elapsed(self) -> float:
        return time.monotonic() - self._began
