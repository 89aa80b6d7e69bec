"""What an experiment is, what it is given to run, and the gauges read once per second."""

from __future__ import annotations

import csv
import re
import threading
import time
import urllib.request
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import import_module
from pathlib import Path
from typing import Any, Self

from sqlalchemy import Engine

from loadtest.fleet import Fairline, Fleet, rows
from loadtest.generator import Generator, Order
from models.pools import POOLS

#: Reads all gauges now. If it raises, that second is left out.
Gauges = Callable[[], Mapping[str, float]]
Row = Mapping[str, float | str]

PERIOD_SECONDS = 1.0
#: Labels and units of gauges in the terminal. Workers claim a little ahead of their slots.
LABELS = {
    "running": ("at workers", ""),
    "oldest_s": ("oldest", " s"),
    "accepted_s": ("accepted", "/s"),
    "done_s": ("done", "/s"),
}


class Sampler:
    """Reads gauges once per second in a thread: rows of ``step, second, at`` and the gauges."""

    def __init__(
        self, step: str, gauges: Gauges, on_figures: Callable[[str], None], rows: list[Row]
    ) -> None:
        self._step = step
        self._gauges = gauges
        self._on_figures = on_figures
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
                at = round(time.time(), 3)
                row: Row = {"step": self._step, "second": number, "at": at, **read}
                self.rows.append(row)
                self._all.append(row)
                self._on_figures(labelled(read))
            # A reading that took longer than a second leaves its seconds out, not late.
            number = max(number + 1, int((time.time() - began) / PERIOD_SECONDS))


def labelled(read: Mapping[str, float]) -> str:
    """The gauges in one line of text."""
    return "  ".join(
        f"{label} {value:g}{unit}"
        for name, value in read.items()
        for label, unit in [LABELS.get(name, (name.replace("_", " "), ""))]
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
    #: All of them in a quarter of an hour: the same shapes, with wider margins.
    QUICK = "quick"
    #: Seconds: does it still run, and see what it should?
    MINI = "mini"


@dataclass(slots=True)
class RunContext:
    """One run of an experiment: its processes, its folder, its size, and where progress goes."""

    fleet: Fleet
    folder: Path
    size: Size
    #: How long a soak lasts, in place of its plan's time.
    minutes: float | None = None
    #: Called with the name of each step that begins, such as ``6/s``.
    step: Callable[[str], None] = lambda _name: None
    #: Called once per second with the gauges in one line.
    on_figures: Callable[[str], None] = lambda _text: None
    #: Every second of every step, in order.
    seconds: list[Row] = field(default_factory=list)

    def watch(self, step: str, gauges: Gauges) -> Sampler:
        """Announce a step and read gauges while its ``with`` block lasts; rows join `seconds`."""
        self.step(step)
        return Sampler(step, gauges, self.on_figures, self.seconds)

    def fairline(self, name: str, score_seconds: float, **settings: str) -> Fairline:
        """A Fairline on the run's services, with its own database; nothing of it runs yet."""
        more = {"score_seconds": str(score_seconds), **settings}
        return Fairline(self.fleet, served_pools=POOL, name=name, **more)

    def generate(self, order: Order) -> Generator:
        return Generator(order, self.fleet.home / "locust")


#: Modules of this package; also their folders in the results and their make targets.
NAMES = ("knee", "scaling", "pool", "swarm", "peers", "cost", "soak")


def experiment(name: str) -> Any:
    """The module of an experiment; what it needs is imported with it.

    It defines ``TITLE``, ``QUESTION`` (what it shows, in one sentence), ``seconds(size)`` (how long
    it takes, about) and ``run(context)``, which measures, draws into the folder and reports.
    """
    return import_module(f"loadtest.lab.{name}")


#: The pool that all experiments measure.
POOL = "medium"
SLOTS = POOLS[POOL].slots
#: The oldest by the index of the queue: ids are in order of admission.
QUEUE = """
    SELECT coalesce(sum(queued + dispatched), 0) AS waiting, coalesce(sum(running), 0) AS running,
           (SELECT min(created_at)
            FROM (SELECT created_at FROM jobs WHERE status = 'queued' AND pool = :pool
                  ORDER BY tenant_id, dependency, priority DESC, id LIMIT 1) AS first) AS oldest,
           coalesce(sum(scheduled + queued + dispatched + running + succeeded + dead
                        + cancelled + expired), 0) AS accepted,
           coalesce(sum(succeeded + dead), 0) AS done
    FROM job_counts WHERE tenant_id = 0 AND pool = :pool
"""
POOL_SAMPLE = re.compile(r'^fairline_db_pool\{process="([^"]+)",state="(\w+)"\} ([0-9.]+)', re.M)


class Speed:
    """A counter's rate since the last call."""

    def __init__(self) -> None:
        self._before: tuple[float, float] | None = None

    def __call__(self, count: float) -> float:
        now = time.monotonic()
        before, self._before = self._before, (now, count)
        if before is None:
            return 0.0
        return round((count - before[1]) / max(1e-6, now - before[0]), 2)


class QueueGauges:
    """``waiting`` (queue and broker), ``running``, ``oldest_s``, ``accepted_s`` and ``done_s``."""

    def __init__(self, engine: Engine, sql: str = QUEUE) -> None:
        self._engine, self._sql = engine, sql
        self._accepted, self._done = Speed(), Speed()

    def __call__(self, **values: str | int) -> dict[str, float]:
        [found] = rows(self._engine, self._sql, **values)
        age = datetime.now(UTC) - found.oldest if found.oldest else timedelta()
        return {
            "waiting": int(found.waiting),
            "running": int(found.running),
            "oldest_s": round(age.total_seconds(), 2),
            "accepted_s": self._accepted(float(found.accepted)),
            "done_s": self._done(float(found.done)),
        }


def read_pools(url: str) -> dict[str, dict[str, int]]:
    """Database connections by state (``waiting``, ``size``, ``in_use``) and process."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=5) as response:
        text = response.read().decode()
    values: dict[str, dict[str, int]] = {"waiting": {}, "size": {}, "in_use": {}}
    for process, state, value in POOL_SAMPLE.findall(text):
        values[state][process] = int(float(value))
    return values


@contextmanager
def fairline_gauges(
    fairline: Fairline, of_all: Callable[[Iterable[int]], int] = max
) -> Iterator[Gauges]:
    """The queue, and ``waiters`` for a database connection, the most of any process by default."""
    with fairline.engine() as engine:
        queue = QueueGauges(engine)
        yield lambda: {
            **queue(pool=POOL),
            "waiters": of_all([0, *read_pools(fairline.url)["waiting"].values()]),
        }
