"""Profiles of the processes under load, by py-spy: which functions take the time."""

from __future__ import annotations

import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
from rich.console import Console

from loadtest import closed_loop
from loadtest.closed_loop import Load
from loadtest.fairline import Fairline
from loadtest.http_bytes import applications
from loadtest.noop import queue_echoes
from loadtest.report import RESULTS

SECONDS = 6
TOP = 25


@contextmanager
def recorded(pids: dict[str, int], folder: Path) -> Iterator[None]:
    """Profile these processes; the stacks are in ``<folder>/<name>.stacks``."""
    folder.mkdir(parents=True, exist_ok=True)
    recorders = [
        subprocess.Popen(
            [
                *(
                    str(Path(sys.executable).parent / "py-spy"),
                    "record",
                    "--format",
                    "raw",
                ),
                *("--rate", "200", "--duration", str(SECONDS), "--pid", str(pid)),
                *("--output", str(folder / f"{name}.stacks")),
            ],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        for name, pid in pids.items()
    ]
    try:
        yield
    finally:
        for recorder in recorders:
            recorder.wait()


def profile_accept(fairline: Fairline, console: Console) -> None:
    """One API process while it takes submissions; all of Fairline runs already."""
    folder = RESULTS / "bench" / "profiles"
    load = Load(fairline.port, 64, 1.0, SECONDS + 2.0, applications(500), 202)
    generator = closed_loop.start(load)
    time.sleep(load.start_seconds)
    workers = psutil.Process(fairline.fleet.children["api"].pid).children()
    with recorded({"api": workers[0].pid}, folder):
        pass
    closed_loop.finish(generator)
    show(folder / "api.stacks", console)


def profile_noop(fairline: Fairline, jobs: int, console: Console) -> None:
    """Worker and scheduler while jobs flow."""
    folder = RESULTS / "bench" / "profiles"
    with fairline.engine() as engine:
        queue_echoes(engine, 3 * jobs)
    fairline.start_scheduler()
    fairline.start_worker("short")
    time.sleep(5.0)
    pids = {
        "worker": fairline.fleet.children["worker-short-1"].pid,
        "scheduler": fairline.fleet.children["scheduler"].pid,
    }
    with recorded(pids, folder):
        pass
    fairline.fleet.stop("worker-short-1", "scheduler")
    for name in pids:
        show(folder / f"{name}.stacks", console)


def show(stacks: Path, console: Console) -> None:
    """The functions that take most, on their own and with what they call."""
    own: Counter[str] = Counter()
    whole: Counter[str] = Counter()
    total = 0
    for text in stacks.read_text().splitlines():
        stack, _, figure = text.rpartition(" ")
        count = int(figure)
        frames = [without_line(frame) for frame in stack.split(";")]
        total += count
        own[frames[-1]] += count
        for frame in set(frames):
            whole[frame] += count
    for title, counted in (("on its own", own), ("with what it calls", whole)):
        console.print(f"{stacks.stem}, {title}", style="bold")
        for name, count in counted.most_common(TOP):
            console.print(f"  {count / max(1, total):>6.1%}  {name}", highlight=False)


def without_line(frame: str) -> str:
    """``function (file)`` instead of ``function (file:line)``."""
    head, colon, tail = frame.rpartition(":")
    return f"{head})" if colon and tail.rstrip(")").isdigit() else frame
