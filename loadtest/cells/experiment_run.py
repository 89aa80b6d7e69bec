"""One run of an experiment with cells: its size, and where its progress is shown."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from rich.console import Console

from loadtest.lab.experiment import Size
from loadtest.report import Screen


@dataclass(frozen=True, slots=True)
class Run:
    """What an experiment is given."""

    size: Size
    #: For pictures.
    folder: Path
    screen: Screen
    console: Console

    def wait(self, what: str, seconds: float) -> None:
        """Let load go on for so long."""
        self.screen.wait(what, seconds)
