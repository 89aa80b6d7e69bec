"""What an experiment is, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from loadtest.fleet import Fleet
from loadtest.lab.sampling import Gauges, Sampler
from loadtest.report import Report


class Size(StrEnum):
    """How long an experiment may take."""

    #: The figures that count.
    FULL = "full"
    #: All of them in ten minutes: the same shapes, with wider margins.
    QUICK = "quick"
    #: Seconds: does it still run, and see what it should?
    MINI = "mini"


def say_nothing(_text: str) -> None:
    """Nobody listens."""


@dataclass(slots=True)
class Desk:
    """Services of its own, a folder to write to, somebody to tell."""

    fleet: Fleet
    folder: Path
    size: Size
    #: A new step begins, such as ``6/s``.
    on_step: Callable[[str], None] = say_nothing
    #: The figures of this second, in one line.
    on_figures: Callable[[str], None] = say_nothing
    #: Every second of every step, in order.
    seconds: list[Mapping[str, float | str]] = field(default_factory=list)

    def step(self, name: str) -> None:
        """Say what comes now."""
        self.on_step(name)

    def watch(self, step: str, gauges: Gauges) -> Sampler:
        """Look once a second while the ``with`` block lasts; the rows join `seconds`."""
        return Sampler(step, gauges, self.on_figures, self.seconds)


class Experiment(Protocol):
    """One question, with the means to answer it."""

    #: Folder and make target.
    name: str
    title: str
    #: What it shows, in one sentence, for the top report.
    question: str

    def seconds(self, size: Size) -> float:
        """How long it takes, about."""
        ...

    def run(self, desk: Desk) -> Report:
        """Measure, draw into the folder, and judge."""
        ...
