"""``python -m loadtest.pictures``: start a stack, let it work, take the README's pictures."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from app.stack.spec import PROJECT_ROOT
from loadtest.chaos.stack import Stack, embedded_stack
from loadtest.pictures.camera import PHONE, Shot, opened_camera
from loadtest.pictures.traffic import ROLES, Traffic

#: How long the stack works before the first picture: its charts need something to tell.
WORK_SECONDS = 240


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.pictures", description=__doc__)
    parser.add_argument("--seconds", type=float, default=WORK_SECONDS)
    parser.add_argument("--into", type=Path, default=PROJECT_ROOT / "docs/images")
    given = parser.parse_args()
    console = Console(highlight=False)
    console.print("Starting a stack …")
    with (
        embedded_stack(WORKERS_MEDIUM="2", FAIRLINE_LAB_RESULTS=str(lab_results())) as stack,
        stack.engine() as engine,
    ):
        traffic = Traffic(stack.port, engine)
        traffic.start()
        try:
            work(given.seconds, console)
            take(stack, traffic, given.into, console)
        finally:
            traffic.stop()


def lab_results() -> Path:
    """The load lab's reports, if there are any."""
    return PROJECT_ROOT / "loadtest/results"


def work(seconds: float, console: Console) -> None:
    """Let the stack work, and say how long that takes."""
    with Progress(console=console) as progress:
        bar = progress.add_task("The stack is at work", total=seconds)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            progress.update(bar, completed=passed)
            time.sleep(0.5)
        progress.update(bar, completed=seconds)


def take(stack: Stack, traffic: Traffic, folder: Path, console: Console) -> None:
    """All pictures."""
    base = f"http://127.0.0.1:{stack.port}"
    application = traffic.apply("Ada Lovelace", ROLES[0])
    job = traffic.call(
        "northwind", "/jobs", {"type": "count", "payload": {"to": 120, "seconds_each": 0.5}}
    )["id"]
    shots = (
        Shot("console-overview", "/"),
        Shot("console-overview-dark", "/", "dark"),
        Shot("console-tenants", "/console/tenants"),
        Shot("console-jobs", "/console/jobs"),
        Shot("console-job", f"/console/jobs/{job}"),
        Shot("console-leaderboard", f"/console/leaderboard?tenant=demo&role={ROLES[0]}"),
        Shot("console-candidate", f"/console/leaderboard/{application}"),
        Shot("console-workers", "/console/workers", "dark"),
        Shot("console-phone", "/", size=PHONE),
        Shot("tenant-page", "/tenant", key=traffic.keys["birchwood"]),
    )
    with opened_camera(base, folder) as camera:
        for shot in shots:
            console.print(f"  {camera.take(shot)}")


if __name__ == "__main__":
    main()
