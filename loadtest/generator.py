"""Load by locust in separate processes, bounded in time; what they did is read back."""

from __future__ import annotations

import math
import shutil
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, Self

from app.stack.services import tail
from app.stack.spawn import Child, spawn
from app.stack.spec import PROJECT_ROOT, ProcessSpec
from loadtest.fleet import clean_environment, until
from loadtest.shapes import Stretch, total_seconds, written
from loadtest.users.wire import Record, read_record

LOCUSTFILE = PROJECT_ROOT / "loadtest" / "locustfile.py"
#: For a process to start, on a machine that has other things to do.
START_SECONDS = 30.0
#: After the last stretch: for answers to come in, and for the record to be written.
END_SECONDS = 20.0
POLL_SECONDS = 0.05


class GeneratorFailed(RuntimeError):
    """Locust failed; the message ends with the last lines of its log."""


@dataclass(frozen=True, slots=True)
class Order:
    """What to send where."""

    url: str
    user: Literal["Submitter", "SwarmClient"]
    #: Arrivals per second for the Submitter, clients for the SwarmClient.
    stretches: Sequence[Stretch]
    #: More options of the locustfile, by their names without dashes: ``{"key": "…"}``.
    options: Mapping[str, str] = field(default_factory=dict)
    #: Of locust; they share the work evenly.
    processes: int = 1


class Generator:
    """Locust at work on one order, from its creation on. Ended by `finish` or `stop`."""

    def __init__(self, order: Order, folder: Path) -> None:
        seconds = total_seconds(order.stretches)
        if math.isinf(seconds):
            raise ValueError("an order has an end")
        folder.mkdir(parents=True, exist_ok=True)
        self._order = order
        self._log = folder / "locust.log"
        self._records = Path(tempfile.mkdtemp(prefix=".record-", dir=folder))
        self._deadline = time.monotonic() + START_SECONDS + seconds + END_SECONDS
        self._children: list[Child] = []
        try:
            for part in range(order.processes):
                spec = ProcessSpec(f"locust-{part}", (*self._command(part), order.user))
                self._children.append(spawn(spec, clean_environment(), self._log))
        except BaseException:
            self.stop()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def pids(self) -> list[int]:
        """The processes, whose cost is added up."""
        return [child.pid for child in self._children]

    def is_over(self) -> bool:
        """Whether everything was sent and answered, or given up."""
        return all(child.poll() is not None for child in self._children)

    def finish(self, grace_seconds: float = 0.0) -> Record:
        """Wait for the end, this much longer than usual at most; the record of everything."""
        try:
            left = self._deadline + grace_seconds - time.monotonic()
            if not until(self.is_over, left, pause=POLL_SECONDS):
                raise self._failed("locust did not come to an end")
            if status := max(abs(child.poll() or 0) for child in self._children):
                raise self._failed(f"locust failed with status {status}")
            record = read_record(self._records)
            sent = list(record.statuses())
            if sent and not any(sent):
                raise self._failed(f"not one of {len(sent)} requests was answered")
            return record
        finally:
            self.stop()

    def stop(self) -> None:
        """End what still runs; the log stays."""
        for child in self._children:
            child.stop()
        shutil.rmtree(self._records, ignore_errors=True)

    def _failed(self, reason: str) -> GeneratorFailed:
        return GeneratorFailed(
            f"{self._order.user} against {self._order.url}: {reason}; it logged:\n{tail(self._log)}"
        )

    def _command(self, part: int) -> tuple[str, ...]:
        order = self._order
        options = {
            "host": order.url,
            "shape": written(order.stretches),
            "record": str(self._records),
            "part": str(part),
            "parts": str(order.processes),
            "exit-code-on-error": "0",  # failed requests are in the record
            **order.options,
        }
        return (
            *(sys.executable, "-m", "locust", "-f", str(LOCUSTFILE)),
            *("--headless", "--only-summary"),
            *(f"--{name}={value}" for name, value in options.items()),
        )
