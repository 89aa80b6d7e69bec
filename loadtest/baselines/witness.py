"""A log that tasks write themselves, independent of rows and messages; one for every library.

Each event is one short line appended in one write, so lines of many processes neither mix nor get
lost with their writer. It costs a few microseconds.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

#: The variable that names the file.
VARIABLE = "PEER_WITNESS"

What = Literal["start", "end"]

_file: int | None = None


@dataclass(frozen=True, slots=True)
class Line:
    what: What
    #: The job's number.
    number: int
    at: float


def log(what: What, number: int) -> None:
    global _file
    if _file is None:
        _file = os.open(os.environ[VARIABLE], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(_file, f"{what} {number} {time.time():.6f}\n".encode())


def run(payload: dict[str, float]) -> None:
    """The whole of ``peer.mark``: a line, a pause, a line."""
    number = int(payload["n"])
    log("start", number)
    time.sleep(payload.get("ms", 0) / 1000)
    log("end", number)


#: Lengths of the jobs whose cost is measured.
LENGTHS_MS = (0, 10, 50, 200, 1500)
#: What every library's tasks do, by name; ``peer.nap`` takes so many milliseconds.
WORK: dict[str, Callable[[dict[str, Any]], None]] = {
    "peer.noop": lambda _: None,
    "peer.nap": lambda payload: time.sleep(payload["ms"] / 1000),
    "peer.mark": run,
}


def read_lines(path: Path, offset: int = 0) -> Iterator[Line]:
    """Every line from a byte on; one that is not complete yet is left out."""
    if not path.exists():
        return
    with path.open("rb") as file:
        file.seek(offset)
        text = file.read()
    for line in text[: text.rfind(b"\n") + 1].decode().splitlines():
        what, number, at = line.split()
        yield Line("start" if what == "start" else "end", int(number), float(at))
