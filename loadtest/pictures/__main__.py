"""``python -m loadtest.pictures``: start a stack, let it work, take the README's pictures."""

from __future__ import annotations

import argparse
import time
from pathlib import Path

from rich.console import Console
from rich.progress import Progress

from app.stack.spec import PROJECT_ROOT
from loadtest.chaos.stack import embedded_stack
from loadtest.pictures.camera import PHONE, TALL, Shot, opened_camera
from loadtest.pictures.traffic import ROLES, Traffic

#: How long the stack works before the first picture: its charts need something to tell.
WORK_SECONDS = 240
#: … and how long after the flood, so that shares are what the weights say.
FLOOD_SECONDS = 30


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m loadtest.pictures", description=__doc__)
    parser.add_argument("--seconds", type=float, default=WORK_SECONDS)
    parser.add_argument("--into", type=Path, default=PROJECT_ROOT / "docs/images")
    given = parser.parse_args()
    console = Console(highlight=False)
    console.print("Starting a stack …")
    with (
        embedded_stack(WORKERS_MEDIUM="2") as stack,
        stack.engine() as engine,
    ):
        traffic = Traffic(stack.port, engine)
        traffic.start()
        job = traffic.retried()
        try:
            with opened_camera(f"http://127.0.0.1:{stack.port}", given.into) as camera:
                work("The stack is at work", given.seconds, console)
                for shot in calm_shots(traffic, job):
                    console.print(f"  {camera.take(shot)}")
                traffic.flood()
                work("… and has more than it can do", FLOOD_SECONDS, console)
                for shot in flooded_shots():
                    console.print(f"  {camera.take(shot)}")
        finally:
            traffic.stop()


def work(title: str, seconds: float, console: Console) -> None:
    """Let the stack work, and say how long that takes."""
    with Progress(console=console) as progress:
        bar = progress.add_task(title, total=seconds)
        began = time.monotonic()
        while (passed := time.monotonic() - began) < seconds:
            progress.update(bar, completed=passed)
            time.sleep(0.5)
        progress.update(bar, completed=seconds)


def calm_shots(traffic: Traffic, job: str) -> tuple[Shot, ...]:
    """A stack that has enough slots for what comes."""
    application = traffic.apply("Ada Lovelace", ROLES[0])
    return (
        Shot("console-overview", "/", size=TALL),
        Shot("console-overview-dark", "/", "dark", size=TALL),
        Shot("console-jobs", "/console/jobs"),
        Shot("console-job", f"/console/jobs/{job}"),
        Shot("console-leaderboard", f"/console/leaderboard?tenant=demo&role={ROLES[0]}"),
        Shot("console-candidate", f"/console/leaderboard/{application}"),
        Shot("console-phone", "/", size=PHONE),
        Shot("tenant-page", "/tenant", key=traffic.keys["birchwood"]),
    )


def flooded_shots() -> tuple[Shot, ...]:
    """One that has not."""
    return (
        Shot("console-tenants", "/console/tenants?pool=medium"),
        Shot("console-workers", "/console/workers", "dark"),
    )


if __name__ == "__main__":
    main()
