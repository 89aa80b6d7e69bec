"""``python -m loadtest.chaos``: minutes of kills, freezes and restarts, and the verdict."""

from __future__ import annotations

import argparse
import random
import signal
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from loadtest.chaos.display import Display, show_summary
from loadtest.chaos.plan import TARGETS, Act
from loadtest.chaos.run import Wish, run


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=2.0, help="how long to hit (2)")
    parser.add_argument("--seed", type=int, help="repeat the hits and the load of a run")
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated")
    parser.add_argument("--broker", choices=("rabbitmq", "filesystem"), default="rabbitmq")
    parser.add_argument("--rate", type=float, default=10.0, help="requests a second (10)")
    parser.add_argument("--folder", type=Path, help="where log and report go")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # the stack must not outlive us
    targets = tuple(target.strip() for target in given.targets.split(",") if target.strip())
    if given.broker == "filesystem":
        targets = tuple(target for target in targets if target != "rabbitmq")  # no process
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}")
    seed = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    folder = given.folder or Path(tempfile.mkdtemp(prefix=f"fairline-chaos-{seed}-"))
    folder.mkdir(parents=True, exist_ok=True)
    wish = Wish(seed, given.minutes * 60, folder, targets, given.broker, given.rate)
    hits = wish.hits()
    console = Console(highlight=False)
    console.print(
        f"Seed [bold]{seed}[/]: {len(hits)} hits in {given.minutes:g} min,"
        f" {sum(hit.act is Act.KILL for hit in hits)} of them kills, under {given.rate:g}"
        f" requests a second. Log and report: {folder}"
    )
    began = time.monotonic()
    with Display(console) as display:
        striker, report = run(wish, display.update)
    show_summary(console, striker.strikes, report, time.monotonic() - began)
    if not report.ok:
        same = f"--seed {seed} --minutes {given.minutes:g} --rate {given.rate:g}"
        which = f"--targets {','.join(targets)} --broker {given.broker}"
        console.print(f"Repeat it: python -m loadtest.chaos {same} {which}", soft_wrap=True)
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
