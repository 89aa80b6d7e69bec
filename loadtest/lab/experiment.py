"""What an experiment is, what it is given, and what is looked at once a second."""

from __future__ import annotations

import csv
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Self

from sqlalchemy import Engine

from loadtest.fleet import Fairline, Fleet, rows
from loadtest.report import Report

SAMPLE = re.compile(r'^fairline_db_pool\{process="([^"]+)",state="(\w+)"\} ([0-9.]+)', re.M)


def read_pools(url: str) -> dict[str, dict[str, int]]:
    """Who waits for a database connection, and how many a process may open, by process."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as answer:
        text = answer.read().decode()
    values: dict[str, dict[str, int]] = {"waiting": {}, "size": {}, "in_use": {}}
    for process, state, value in SAMPLE.findall(text):
        values[state][process] = int(float(value))
    return values


#: Read all gauges of the moment. May raise OSError or a database error: that second is left out.
Gauges = Callable[[], Mapping[str, float]]
Row = Mapping[str, float | str]

PERIOD_SECONDS = 1.0
#: How gauges are called where people look. Workers claim a little ahead of their slots.
WORDS = {
    "running": ("at workers", ""),
    "oldest_s": ("oldest", " s"),
    "accepted_s": ("accepted", "/s"),
    "done_s": ("done", "/s"),
}


class Sampler:
    """Rows of ``step, second, at`` and the gauges, one a second, by the clock."""

    def __init__(
        self, step: str, gauges: Gauges, tell: Callable[[str], None], rows: list[Row]
    ) -> None:
        self._step = step
        self._gauges = gauges
        self._tell = tell
        self._all = rows
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler", daemon=True)
        #: This step's rows.
        self.rows: list[Row] = []
        #: Seconds that could not be read.
        self.missed = 0

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(10 * PERIOD_SECONDS)

    def most(self, gauge: str) -> float:
        """The highest value of a gauge in this step."""
        return max((float(row[gauge]) for row in self.rows if gauge in row), default=0.0)

    def _run(self) -> None:
        began = time.time()
        number = 0
        while not self._stop.wait(max(0.0, began + number * PERIOD_SECONDS - time.time())):
            try:
                read = self._gauges()
            except Exception:  # noqa: BLE001 - see below
                # A server that is being started or killed is part of some experiments.
                self.missed += 1
            else:
                row: Row = {
                    "step": self._step,
                    "second": number,
                    "at": round(time.time(), 3),
                    **read,
                }
                self.rows.append(row)
                self._all.append(row)
                self._tell(in_words(read))
            # A look that took longer than a second leaves its seconds out, not late.
            number = max(number + 1, int((time.time() - began) / PERIOD_SECONDS))


def in_words(read: Mapping[str, float]) -> str:
    """The gauges in one line."""
    return "  ".join(
        f"{word} {value:g}{unit}"
        for name, value in read.items()
        for word, unit in [WORDS.get(name, (name.replace("_", " "), ""))]
    )


def write_csv(file: Path, rows: Iterable[Row]) -> None:
    """Rows with the columns of all of them."""
    kept = list(rows)
    columns = list(dict.fromkeys(name for row in kept for name in row))
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("w", newline="") as opened:
        writer = csv.DictWriter(opened, columns, restval="")
        writer.writeheader()
        writer.writerows(kept)


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


@dataclass(frozen=True, slots=True)
class Experiment:
    """One question, with the means to answer it."""

    #: Folder and make target.
    name: str
    title: str
    #: What it shows, in one sentence, for the top report.
    question: str
    #: How long it takes, about.
    seconds: Callable[[Size], float]
    #: Measure, draw into the folder, and judge.
    run: Callable[[Desk], Report]


#: Each is a module or package of this one, with its ``EXPERIMENT``.
NAMES = ("knee", "scaling", "pool", "swarm", "peers", "soak")


def experiment(name: str) -> Experiment:
    """The experiment of this name; what it needs is imported with it."""
    found: Experiment = import_module(f"loadtest.lab.{name}").EXPERIMENT
    return found


COUNTS = """
    SELECT coalesce(sum(queued), 0), coalesce(sum(dispatched), 0), coalesce(sum(running), 0),
           coalesce(sum(succeeded + dead), 0),
           coalesce(sum(scheduled + queued + dispatched + running + succeeded + dead
                        + cancelled + expired), 0)
    FROM job_counts WHERE tenant_id = 0 AND pool = :pool
"""
#: By the index of the line: ids are in order of admission.
OLDEST = """
    SELECT coalesce(extract(epoch FROM clock_timestamp() - min(created_at)), 0)::float8
    FROM (SELECT created_at FROM jobs WHERE status = 'queued' AND pool = :pool
          ORDER BY tenant_id, dependency, priority DESC, id LIMIT 1) AS first
"""


class Speed:
    """A counter's rate since the last look."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def __call__(self, count: float) -> float:
        now = time.monotonic()
        before, self._before = self._before, (now, count)
        if before is None:
            return 0.0
        return round((count - before[1]) / max(1e-6, now - before[0]), 2)


class LineGauges:
    """``waiting`` (line and broker), ``running``, ``oldest_s``, ``accepted_s`` and ``done_s``."""

    def __init__(self, engine: Engine, pool: str = "medium") -> None:
        self._engine, self._pool = engine, pool
        self._accepted, self._done = Speed(), Speed()

    def __call__(self) -> dict[str, float]:
        queued, dispatched, running, ended, everything = rows(
            self._engine, COUNTS, pool=self._pool
        )[0]
        return {
            "waiting": int(queued + dispatched),
            "running": int(running),
            "oldest_s": round(rows(self._engine, OLDEST, pool=self._pool)[0][0], 2),
            "accepted_s": self._accepted(float(everything)),
            "done_s": self._done(float(ended)),
        }


@contextmanager
def fairline_gauges(
    fairline: Fairline, pool: str = "medium", of_all: Callable[[Iterable[int]], int] = max
) -> Iterator[Gauges]:
    """The line, and ``waiters`` for a database connection, the most of any process by default."""
    with fairline.engine() as engine:
        line = LineGauges(engine, pool)
        yield lambda: {
            **line(),
            "waiters": of_all([0, *read_pools(fairline.url)["waiting"].values()]),
        }
