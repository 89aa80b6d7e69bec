"""A look once a second, from a thread of its own."""

from __future__ import annotations

import csv
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Self

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
