"""``python -m loadtest.chaos``: rounds of kills on an embedded stack, and the verdict."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from pathlib import Path

from rich.console import Console

from loadtest.chaos.display import Display, show_summary
from loadtest.chaos.killer import TARGETS, plan
from loadtest.chaos.rounds import SETTINGS, run_rounds
from loadtest.chaos.stack import embedded_stack


def main(arguments: list[str] | None = None) -> int:
    """The command line; 0 if every promise was kept."""
    parser = argparse.ArgumentParser(prog="python -m loadtest.chaos", description=__doc__)
    parser.add_argument("--rounds", type=int, default=10, help="kills of each target")
    parser.add_argument("--seed", type=int, help="repeat the order and the moments of a run")
    parser.add_argument("--targets", default=",".join(TARGETS), help="comma-separated")
    parser.add_argument("--broker", choices=("rabbitmq", "filesystem"), default="rabbitmq")
    parser.add_argument("--rate", type=float, default=20.0, help="submissions a second")
    parser.add_argument("--workers", type=int, default=2, help="workers of the pool medium")
    parser.add_argument("--log", type=Path, help="where to keep the client's log")
    given = parser.parse_args(arguments)
    targets = [target.strip() for target in given.targets.split(",") if target.strip()]
    if given.broker == "filesystem":
        targets = [target for target in targets if target != "rabbitmq"]  # there is no process
    if unknown := set(targets) - set(TARGETS):
        parser.error(f"unknown targets: {', '.join(sorted(unknown))}")
    seed = random.SystemRandom().randrange(10**9) if given.seed is None else given.seed
    strikes = list(plan(targets, given.rounds, seed))
    log = given.log or Path(tempfile.gettempdir()) / f"fairline-chaos-{seed}.jsonl"
    console = Console(highlight=False)
    console.print(
        f"Seed [bold]{seed}[/]: {len(strikes)} kills of {', '.join(targets)} under "
        f"{given.rate:g} submissions a second, broker {given.broker}. Client's log: {log}"
    )
    log.unlink(missing_ok=True)
    settings = {**SETTINGS, "BROKER": given.broker, "WORKERS_MEDIUM": str(given.workers)}
    began = time.monotonic()
    with embedded_stack(**settings) as stack:
        console.print(f"Stack is up after {time.monotonic() - began:.1f} s: {stack.home.path}")
        with Display(console, len(strikes)) as display:
            recoveries, report = run_rounds(
                stack, strikes, log, per_second=given.rate, watch=display.update
            )
        if not report.ok:
            console.print(stack.logs(30), markup=False)
    show_summary(console, recoveries, report, time.monotonic() - began)
    if not report.ok:
        console.print(f"Repeat it: python -m loadtest.chaos --seed {seed} --rounds {given.rounds}")
    return 0 if report.ok else 1


if __name__ == "__main__":
    sys.exit(main())
