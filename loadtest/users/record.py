"""What was sent and what came of it: kept in memory while the load lasts, then written once.

Each process of a generator leaves files of its own in one folder; whoever started it reads them
all together.
"""

from __future__ import annotations

import csv
import json
import os
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

#: What a request of the swarm was for, or that a round of all three ended; its place here is kept.
KINDS = ("submit", "poll", "round")
SUBMIT, POLL, ROUND = range(3)


@dataclass(frozen=True, slots=True)
class Arrival:
    """One submission and its answer."""

    #: When it was to start, in seconds since the epoch.
    intended_at: float
    #: From then to the answer, or to when it was given up.
    latency_seconds: float
    #: 0 if no answer came.
    status: int
    #: The id of what was submitted, if it was accepted.
    id: str


class Row(NamedTuple):
    """One request of the swarm."""

    at: float
    latency_seconds: float
    status: int
    kind: str


class Requests:
    """Very many requests, a column each for when, how long, status and kind."""

    __slots__ = ("at", "kind", "latency_seconds", "status")

    def __init__(self) -> None:
        #: When each was sent, in seconds since the epoch.
        self.at = array("d")
        self.latency_seconds = array("d")
        #: 0 if no answer came.
        self.status = array("H")
        #: `SUBMIT`, `POLL` or `ROUND`.
        self.kind = array("B")

    def __len__(self) -> int:
        return len(self.at)

    def __iter__(self) -> Iterator[Row]:
        for at, latency, status, kind in zip(*self.columns(), strict=True):
            yield Row(at, latency, int(status), KINDS[int(kind)])

    def columns(self) -> tuple[array[float], array[float], array[int], array[int]]:
        """The columns, in the order of a row."""
        return self.at, self.latency_seconds, self.status, self.kind

    def add(self, at: float, latency_seconds: float, status: int, kind: int) -> None:
        """One more."""
        self.at.append(at)
        self.latency_seconds.append(latency_seconds)
        self.status.append(status)
        self.kind.append(kind)

    def write(self, folder: Path) -> Path:
        """A file of this process."""
        file = folder / f"requests-{os.getpid()}.bin"
        with file.open("wb") as opened:
            opened.write(json.dumps({"rows": len(self)}).encode() + b"\n")
            for column in self.columns():
                column.tofile(opened)
        return file

    def read(self, file: Path) -> None:
        """Add what a process wrote."""
        with file.open("rb") as opened:
            rows = json.loads(opened.readline())["rows"]
            for column in self.columns():
                column.fromfile(opened, rows)


@dataclass(frozen=True, slots=True)
class Record:
    """Everything that a generator did; the users at work decide which of the two is filled."""

    #: By intended start.
    arrivals: list[Arrival] = field(default_factory=list)
    #: Process by process, each in the order of the answers.
    requests: Requests = field(default_factory=Requests)

    def statuses(self) -> Iterator[int]:
        """The status of everything that was sent."""
        for arrival in self.arrivals:
            yield arrival.status
        yield from self.requests.status


def write_arrivals(folder: Path, arrivals: Sequence[Arrival]) -> Path:
    """A file of this process."""
    file = folder / f"arrivals-{os.getpid()}.csv"
    with file.open("w", newline="") as opened:
        rows = csv.writer(opened)
        for each in arrivals:
            rows.writerow((each.intended_at, each.latency_seconds, each.status, each.id))
    return file


def read_arrivals(file: Path) -> list[Arrival]:
    """What a process wrote."""
    with file.open(newline="") as opened:
        return [
            Arrival(float(at), float(latency), int(status), name)
            for at, latency, status, name in csv.reader(opened)
        ]


def read_record(folder: Path) -> Record:
    """All files of a folder together."""
    record = Record()
    for file in sorted(folder.glob("arrivals-*.csv")):
        record.arrivals.extend(read_arrivals(file))
    for file in sorted(folder.glob("requests-*.bin")):
        record.requests.read(file)
    record.arrivals.sort(key=lambda arrival: arrival.intended_at)
    return record
